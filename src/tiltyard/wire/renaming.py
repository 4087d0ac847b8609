"""Names a field as the client wrote it: protocols are served by the chat request, whose fields have other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiltyard.errors import TiltyardError


def rename(error: TiltyardError, names: Mapping[str, str], messages: Sequence[str] = ()) -> None:
    """Write the client's names into an error.

    `names` maps beginnings of paths (the longest one that fits counts); `messages[i]` says where message `i` came
    from.

    >>> error = TiltyardError("messages[1].content is 3", param="messages[1].content")
    >>> rename(error, {}, ["instructions", "input[0]"])
    >>> error.message, error.param
    ('input[0].content is 3', 'input[0].content')
    """
    if error.param is None:
        return
    param = _renamed(error.param, names, messages)
    error.message = error.message.replace(error.param, param)
    error.args = (error.message,)
    error.param = param


def _renamed(param: str, names: Mapping[str, str], messages: Sequence[str]) -> str:
    if param.startswith("messages["):
        index, _, rest = param.removeprefix("messages[").partition("]")
        if index.isdecimal() and int(index) < len(messages):
            return messages[int(index)] + rest
    for name in sorted(names, key=len, reverse=True):
        if param == name or param.startswith((name + ".", name + "[")):
            return names[name] + param.removeprefix(name)
    return param
