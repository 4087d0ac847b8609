from __future__ import annotations

import orjson
from gateway_stage import Stage
from openai import OpenAI

from tiltyard.events.schema import GenerationFinished


def test_a_stream_is_passed_on_and_recorded(stage: Stage) -> None:
    client = OpenAI(base_url=stage.url + "/v1", api_key="any")
    stream = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "!pieces"}], stream=True, seed=5
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "你好，世界！👩‍👩‍👧🎏 漢字"
    event = stage.log.generation(chunks[0].id)
    assert isinstance(event, GenerationFinished)
    assert (event.alias, event.identity, event.seed) == ("chat", "plain", 5)
    assert event.response is not None
    said = orjson.loads(stage.log.read_content(event.response))
    assert said["choices"][0]["text"] == text
