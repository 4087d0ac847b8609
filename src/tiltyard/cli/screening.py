"""What finds personal data in a deployment, as its settings say: for the arena's battles and for tenants' requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tiltyard.arena.screening import Screening
from tiltyard.cli.settings import Settings
from tiltyard.events.schema import DataPolicy
from tiltyard.gateway.screening import MakeScreen, Screen
from tiltyard.governance.names import names_by
from tiltyard.governance.personal_data import NameFinder
from tiltyard.governance.redaction import Redactor


def screens(settings: Settings) -> MakeScreen:
    """One redactor for each request of a tenant."""
    names = _names(settings)

    def make(policy: DataPolicy) -> Screen:
        return Redactor("tag" if policy == "keep" else policy, names)

    return make


def screening(settings: Settings) -> Screening:
    """One redactor for each battle."""
    policy = settings.file.arena.personal_data
    if policy == "keep":
        return Screening()
    names = _names(settings)
    return Screening(policy, lambda: Redactor(policy, names))


def redactors(settings: Settings) -> Callable[[], Redactor]:
    """One redactor for each conversation that leaves for a fixed set: whatever a tenant's terms are, it goes out redacted."""
    names = _names(settings)
    return lambda: Redactor("redact", names)


def _names(settings: Settings) -> NameFinder | None:
    model = settings.file.data.names_model
    return None if model is None else _loaded(model)


@cache
def _loaded(model: str) -> NameFinder:
    return names_by(model)
