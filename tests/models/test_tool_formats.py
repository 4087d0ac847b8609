"""The format of calls is found in real chat templates, and what a template renders is read back."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.identity.declaration import ToolFormatName
from tiltyard.models.template import ChatTemplate
from tiltyard.models.tool_formats import BY_NAME, FORMATS, ONE_CALL_ONLY, detect
from tiltyard.models.tool_parser import ToolParser
from tiltyard.models.tool_prompt import messages_with_calls

NOON = datetime(2024, 7, 26, 12, 0, 0)  # noqa: DTZ001
FOUND = {
    "Apriel-1.6-15b-Thinker-fixed": "tool-calls",
    "Cohere2MoE": "cohere",
    "MiniMax-M1": "tool-calls",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "StepFun3.5-Flash": "qwen3-coder",
    "qwen35": "qwen3-coder",
    "tool_chat_template_qwen3coder": "qwen3-coder",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Reka-Edge": "hermes",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral-args",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "qwen3": "hermes",
    "tool_chat_template_granite": "granite",
    "tool_chat_template_hermes": "hermes",
    "tool_chat_template_hunyuan_a13b": "tool-calls",
    "tool_chat_template_llama3.1_json": "llama3",
    "tool_chat_template_llama3.2_json": "llama3",
    "tool_chat_template_llama4_json": "llama3",
    "tool_chat_template_mistral_parallel": "mistral",
    "tool_chat_template_xlam_llama": "xlam",
    "tool_chat_template_xlam_qwen": "xlam",
    "unsloth-Apriel-1.5": "tool-calls",
    "unsloth-mistral-Devstral-Small-2507": "mistral-args",
}
"""Of 76 templates; the others show no tools, or show calls in ways that are not known here (Python, other tags, tokens of their own)."""
RENDERS_NO_CALLS = {"ibm-granite-granite-3.3-2B-Instruct"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "array"}},
            },
        },
    }
]


@pytest.fixture(scope="module")
def templates(shared_data: Path) -> dict[str, str]:
    folder = shared_data / "serving" / "chat_templates"
    paths = [*folder.glob("llama.cpp/*.jinja"), *folder.glob("vllm/examples/*.jinja")]
    return {path.stem: path.read_text("utf-8") for path in paths}


def test_the_format_of_each_real_template_is_found(templates: dict[str, str]) -> None:
    found = {name: kind for name, source in templates.items() if (kind := detect(source)) is not None}
    assert len(templates) == 76
    assert {name: kind for name, kind in found.items() if compiled(templates[name]).shows_tools} == FOUND


compiled = cache(ChatTemplate)


def render(source: str, calls: int) -> str:
    called = [
        {
            "id": f"call{number:05}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": arguments_of(number)},
        }
        for number in range(calls)
    ]
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": called},
    ]
    return compiled(source).render(
        messages_with_calls(messages), add_generation_prompt=False, variables={"tools": TOOLS}, now=NOON
    )


def arguments_of(number: int) -> str:
    return json.dumps({"city": f'Saint-Jean-d\'"Acre" {number}', "days": [1, {"to": number}]})


@pytest.mark.parametrize("name", sorted(FOUND.keys() - RENDERS_NO_CALLS))
def test_the_calls_that_a_template_renders_are_read_back(name: str, templates: dict[str, str]) -> None:
    """LocalAI PR #10256, Qwen3-Coder #444: arguments reached the template as text, and were shown or refused as text."""
    rules = BY_NAME[FOUND[name]]  # type: ignore[index]
    for calls in (1, 2):
        try:
            rendered = render(templates[name], calls)
        except InvalidRequest:
            assert calls == 2
            assert ONE_CALL_ONLY in templates[name]
            continue
        answer = rendered[rendered.rfind("Weather?") :]
        if rules.bare:
            answer = answer[answer.index("{") :]
        parser = ToolParser(rules, {"get_weather": TOOLS[0]["function"]["parameters"]})  # type: ignore[dict-item,index]
        read = parser.push(answer).calls + parser.finish().calls
        assert [json.loads(call.arguments) for call in read] == [
            json.loads(arguments_of(n)) for n in range(calls)
        ]


def test_ids_are_the_same_for_the_same_place_and_fit_mistral() -> None:
    mistral = BY_NAME["mistral"]
    assert mistral.call_id("gen_1", 0, 0) == mistral.call_id("gen_1", 0, 0)
    assert len(mistral.call_id("gen_1", 0, 0)) == 9
    ids = {row.call_id("gen_1", choice, number) for row in FORMATS for choice in (0, 1) for number in (0, 1)}
    assert len(ids) == 8  # four places, two lengths


def test_every_format_may_be_declared_and_is_documented() -> None:
    declared = get_args(ToolFormatName)
    assert {row.name for row in FORMATS} == set(declared)
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text("utf-8")
    assert all(f"\n| `{name}` | " in page for name in declared)
