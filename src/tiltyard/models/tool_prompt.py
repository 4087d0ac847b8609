"""What a request's tools and calls look like to a chat template.

A template that shows tools gets them as Hugging Face gives them. For one that does not, an identity may say
`tool_format = "smollm2"`, and a forced call is told so anyway: the tools go into the system message, in the words with
which SmolLM2 was trained, and earlier calls into the text of their messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tiltyard.models.tool_formats import ToolFormat
from tiltyard.wire.tools import ToolCall, ToolUse

# https://huggingface.co/HuggingFaceTB/SmolLM2-1.7B-Instruct, "Function calling".
_TOLD = """\
You are an expert in composing functions. You are given a question and a set of possible functions.
Based on the question, you will need to make one or more function/tool calls to achieve the purpose.
If none of the functions can be used, point it out and refuse to answer.
If the given question lacks the parameters required by the function, also point it out.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
The example format is as follows. Please make sure the parameter type is correct. If no function call is needed, \
please make the tool calls an empty list '[]'.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more tool calls as required)
]</tool_call>"""


def concerns_tools(message: Mapping[str, object]) -> bool:
    """Whether a message calls tools or is what one gave."""
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def messages_with_calls(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Messages as templates expect them: arguments as objects, results with the name of their function."""
    names: dict[str, str] = {}
    shown: list[dict[str, object]] = []
    for message in messages:
        # Never null: every template here that renders a call takes "", and a third of them fails on null.
        turn: dict[str, object] = {"role": message["role"], "content": message.get("content") or ""}
        if calls := calls_of(message):
            names |= {call.id: call.function.name for call in calls}
            turn["tool_calls"] = [call.for_template() for call in calls]
        if message["role"] == "tool":
            answered = str(message.get("tool_call_id", ""))
            turn["tool_call_id"] = answered
            turn["name"] = message.get("name") or names.get(answered, "")
        shown.append(turn)
    return shown


def told_in_words(
    messages: Sequence[Mapping[str, object]], use: ToolUse | None, rules: ToolFormat
) -> list[dict[str, object]]:
    """The same conversation for a template that knows nothing of tools: all of it as text."""
    told: list[dict[str, object]] = []
    for message in messages:
        content = message.get("content") or ""
        if calls := calls_of(message):
            listed = [
                {"name": call.function.name, "arguments": call.for_template()["function"]["arguments"]}  # type: ignore[index]
                for call in calls
            ]
            text = f"{rules.opens[0]}{json.dumps(listed, ensure_ascii=False)}{rules.close}"
            content = f"{content}\n{text}" if content else text
        if message["role"] == "tool":
            told.append({"role": "user", "content": f"<tool_response>{content}</tool_response>"})
        else:
            told.append({"role": message["role"], "content": content})
    if use is None:
        return told
    tools = [tool.for_template()["function"] for tool in use.tools]
    words = _TOLD.format(tools=json.dumps(tools, ensure_ascii=False))
    if told and told[0]["role"] == "system":
        told[0]["content"] = f"{told[0]['content']}\n\n{words}"
        return told
    return [{"role": "system", "content": words}, *told]


def calls_of(message: Mapping[str, object]) -> list[ToolCall]:
    """The calls of a message as it was checked."""
    calls = message.get("tool_calls")
    return [ToolCall.model_validate(call) for call in calls] if isinstance(calls, list) else []
