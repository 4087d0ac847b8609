"""Names a field as the client wrote it: protocols are served by the chat request, whose fields have other names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tiltyard.errors import TiltyardError

_MEMBER = re.compile(r"(messages|tools)\[([0-9]{1,9})\](.*)", re.DOTALL)


def rename(error: TiltyardError, names: Mapping[str, str], messages: Sequence[str] = ()) -> None:
    """Write the client's names into an error.

    `names` maps beginnings of paths (the longest one that fits counts); `messages[i]` says where message `i` came
    from; a name `messages[].x` or `tools[].x` stands for the member of each.

    >>> error = TiltyardError("messages[1].content is 3", param="messages[1].content")
    >>> rename(error, {}, ["instructions", "input[0]"])
    >>> error.message, error.param
    ('input[0].content is 3', 'input[0].content')
    >>> error = TiltyardError("messages[0].content is 3", param="messages[0].content")
    >>> rename(error, {"messages": "input"}, ["input[0]"])
    >>> error.param
    'input[0].content'
    """
    if error.param is None:
        return
    param = _renamed(error.param, names, messages)
    error.message = error.message.replace(error.param, param)
    error.args = (error.message,)
    error.param = param


def _renamed(param: str, names: Mapping[str, str], messages: Sequence[str]) -> str:
    if (match := _MEMBER.fullmatch(param)) is not None:
        name, index, rest = match[1], int(match[2]), match[3]
        members = {old: new for old, new in names.items() if old.startswith(name + "[]")}
        rest = _with_beginning(name + "[]" + rest, members).removeprefix(name + "[]")
        if name == "tools":
            return f"tools[{index}]{rest}"
        if index < len(messages):
            return messages[index] + rest
    return _with_beginning(param, names)


def _with_beginning(param: str, names: Mapping[str, str]) -> str:
    for name in sorted(names, key=len, reverse=True):
        if param == name or param.startswith((name + ".", name + "[")):
            return names[name] + param.removeprefix(name)
    return param
