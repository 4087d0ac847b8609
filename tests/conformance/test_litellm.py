"""litellm, unmodified, by OpenAI's and by Anthropic's protocol. It is never installed by us: see `docs/clients.md`."""

from __future__ import annotations

from typing import Any

import pytest
from real_house import House

pytestmark = pytest.mark.filterwarnings("ignore")  # a package's own, on its import
QUESTION = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its own copy instead of the network's
    return pytest.importorskip("litellm", reason="litellm is installed by hand only")


def settings(house: House, protocol: str) -> dict[str, Any]:
    base = house.url + "/v1" if protocol == "openai" else house.url
    return {
        "model": f"{protocol}/chat",
        "api_base": base,
        "api_key": "any",
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 24,
    }


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_whole_and_streamed(litellm: Any, house: House, protocol: str) -> None:
    answer = litellm.completion(**settings(house, protocol))
    assert "Paris" in answer.choices[0].message.content
    stream = litellm.completion(**settings(house, protocol), stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == answer.choices[0].message.content


async def test_async(litellm: Any, house: House) -> None:
    answer = await litellm.acompletion(**settings(house, "openai"))
    assert "Paris" in answer.choices[0].message.content


def test_embeddings(litellm: Any, house: House) -> None:
    vectors = litellm.embedding(
        model="openai/chat",
        api_base=house.url + "/v1",
        api_key="any",
        input=["a dog"],
        encoding_format="float",
    )
    assert len(vectors.data[0]["embedding"]) == 576
