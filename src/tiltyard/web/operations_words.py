"""What the Operations page calls things, in the language of its reader."""

from __future__ import annotations

from tiltyard.objectives.status import Reason, State
from tiltyard.operations.figures import CONTEXTS, LONGEST, NOWHERE, Dimension
from tiltyard.web.languages import gettext, number_in_words, percent


def dimension(by: Dimension) -> str:
    """The heading of a table."""
    return {
        "model": gettext("By model version"),
        "request": gettext("By type of request"),
        "context": gettext("By length of the prompt"),
        "tenant": gettext("By tenant"),
        "class": gettext("By class"),
        "region": gettext("By region"),
    }[by]


def slice_name(by: Dimension, name: str) -> str:
    """What a row is called; names that people gave stay."""
    if by == "context":
        return _context(name)
    if by == "request":
        endpoint, _, how = name.partition(", ")
        return f"{endpoint}, {gettext('streamed') if how == 'streamed' else gettext('whole')}"
    if by == "region" and name == NOWHERE:
        return gettext("no region is set")
    return name


def _context(name: str) -> str:
    least = 0
    for most, shown in CONTEXTS:
        if name == shown:
            return gettext(
                "%(least)s to %(most)s tokens", least=number_in_words(least), most=number_in_words(most)
            )
        least = most + 1
    return gettext("%(least)s tokens and more", least=number_in_words(least)) if name == LONGEST else name


def counted(unit: str, count: float) -> str:
    """So many of what an objective counts."""
    number = number_in_words(count)
    return {
        "requests": gettext("%(number)s requests", number=number),
        "answers": gettext("%(number)s answers", number=number),
        "seconds": gettext("%(number)s seconds", number=number),
        "votes": gettext("%(number)s votes", number=number),
        "battles": gettext("%(number)s battles", number=number),
        "judgments": gettext("%(number)s judgments", number=number),
    }.get(unit, f"{number} {unit}")


def state(of: State) -> str:
    """Of an objective."""
    return {
        "no data": gettext("no data"),
        "ok": gettext("kept"),
        "ticket": gettext("ticket"),
        "page": gettext("page somebody"),
    }[of]


def reason(of: Reason) -> str:
    """Why it is in its state."""
    return {
        "kept": gettext("kept"),
        "nothing_seen": gettext("nothing was seen in its window"),
        "nothing_lately": gettext("nothing was seen in the last hour"),
        "too_few": gettext("too few were seen to say"),
        "burning": gettext("the error budget burns too fast"),
        "budget_spent": gettext("the error budget of the window is spent"),
        "evidence": gettext("draws do not follow the recorded probabilities"),
        "not_zero": gettext("this must never happen and did"),
    }[of]


def worker_state(of: str) -> str:
    """One word for how a worker is."""
    return {
        "ready": gettext("ready"),
        "starting": gettext("starting"),
        "draining": gettext("draining"),
        "down": gettext("down"),
        "tripped": gettext("tripped"),
        "hung": gettext("hung"),
        "silent": gettext("silent"),
        "loading": gettext("loading"),
    }.get(of, of)


def milliseconds(value: float) -> str:
    """With as many digits as tell something."""
    return number_in_words(value, 0 if value >= 100 else 1)


def change(now: float | None, before: float | None) -> str:
    """By how much a figure is above or below that of the window before; empty where there is none."""
    if now is None or not before:
        return ""
    ratio = now / before - 1
    return ("+" if ratio >= 0 else "−") + percent(abs(ratio))
