"""One thing that was looked at: how it is, why, and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tiltyard.errors import TiltyardError

Status = Literal["ok", "warn", "fail", "skipped"]
ORDER: Final[tuple[Status, ...]] = ("ok", "skipped", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """One line."""

    check: str
    status: Status
    told: str
    do: str = ""
    """What mends it, best a command; never empty for a failure."""


Check = Callable[[], Iterable[Finding]]


def looked(check: str, look: Check) -> Iterator[Finding]:
    """Run a check; one that is broken itself is a failure of its own, and the others go on."""
    try:
        yield from look()
    except TiltyardError as error:
        yield Finding(check, "fail", error.message, "see the message")
    except Exception as error:  # noqa: BLE001  # a doctor that falls ill must not hide the rest
        yield Finding(
            check,
            "fail",
            f"could not be looked at: {type(error).__name__}: {error}",
            "report this with the output of `tiltyard doctor --json`",
        )


def worst(findings: Iterable[Finding]) -> Status:
    """The worst status of all; `ok` of none."""
    return max((finding.status for finding in findings), key=ORDER.index, default="ok")
