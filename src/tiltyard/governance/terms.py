"""`[data.terms.NAME]`: what may be done with the words of a tenant, an imported source, the arena's voters or everybody else.

The vault asks the log, not a file: a server writes what its file says into the log when it starts (`record_terms`), and from
then on every process over that log obeys it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field

from tiltyard.events.log import EventLog
from tiltyard.events.schema import PURPOSES, DataTermsSet, Purpose
from tiltyard.identity.manifest import Frozen, Whole

SOURCE: Final = "tiltyard/governance"
Days = Annotated[Whole, Field(ge=1, le=36_500)]


class DataTerms(Frozen):
    """What is allowed: `true`, `false`, or for how many days after the words were written.

    >>> DataTerms(serve=30, publish=True).purposes
    {'serve': 30, 'evaluate': None, 'publish': None}
    """

    serve: bool | Days = True
    evaluate: bool | Days = True
    train: bool | Days = False
    publish: bool | Days = False
    basis: str = Field(default="the settings", min_length=1)
    """Why that is allowed: a contract, a licence."""

    @property
    def purposes(self) -> dict[Purpose, int | None]:
        """The allowed ones, each with its days."""
        found: dict[Purpose, int | None] = {}
        for purpose in PURPOSES:
            value = getattr(self, purpose)
            if value is True:
                found[purpose] = None
            elif value is not False:
                found[purpose] = int(value)
        return found


def record_terms(log: EventLog, terms: Mapping[str, DataTerms], *, by: str = "settings") -> list[str]:
    """Append the terms that differ from those in the log; returns their scopes. Blocks."""
    known = log.data_terms()
    changed = [scope for scope, one in terms.items() if known.get(scope) != one.purposes]
    for scope in changed:
        one = terms[scope]
        event = DataTermsSet(scope=scope, purposes=one.purposes, basis=one.basis, by=by)
        log.append_blocking(event, subject=scope, source=SOURCE)
    return changed
