"""Who is behind a row: the names, organisation and licence that belong to a behaviour digest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class DeclarationLike(Protocol):
    """The part of an identity's declaration that a row shows."""

    @property
    def organization(self) -> str:
        """Who made the model."""

    @property
    def license(self) -> str:
        """Under which licence."""

    @property
    def description(self) -> str:
        """What sets this identity apart."""


class IdentityLike(Protocol):
    """What is needed of a registered identity; an `IdentityRegistered` event is one."""

    @property
    def name(self) -> str:
        """The name in `tiltyard.toml`."""

    @property
    def behaviour(self) -> str:
        """Behaviour digest."""

    @property
    def declaration(self) -> DeclarationLike:
        """What the user wrote."""


@dataclass(frozen=True)
class RatedModel:
    """One model as votes know it."""

    key: str
    """Key of its votes: a behaviour digest, or the name that an imported votes file uses."""
    name: str
    organization: str = ""
    license: str = ""
    description: str = ""
    behaviour: str | None = None
    """`None` for models of an imported file, which have no identity here."""
    superseded: bool = False
    """Its name was later given to another behaviour."""


def unregistered(key: str) -> RatedModel:
    """Stand for a key that no identity explains: a digest, shortened, or the name in a votes file."""
    if key.startswith("sha256:"):
        return RatedModel(key=key, name=key[:19], behaviour=key)
    return RatedModel(key=key, name=key)


def rated_models(identities: Iterable[IdentityLike]) -> list[RatedModel]:
    """Name each behaviour by its latest registration; `identities` come in the order of their registration.

    Two identities with one behaviour are one model, named after the later.
    """
    holder: dict[str, str] = {}  # name -> behaviour that it means now
    latest: dict[str, IdentityLike] = {}
    for identity in identities:
        holder[identity.name] = identity.behaviour
        latest[identity.behaviour] = identity
    return [
        RatedModel(
            key=behaviour,
            name=identity.name,
            organization=identity.declaration.organization,
            license=identity.declaration.license,
            description=identity.declaration.description,
            behaviour=behaviour,
            superseded=holder[identity.name] != behaviour,
        )
        for behaviour, identity in latest.items()
    ]
