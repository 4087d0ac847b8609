"""Who is asked: a model name, and the identity that it stands for at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiltyard.client import ModelClient
from tiltyard.errors import Conflict, InvalidRequest, NotFound
from tiltyard.identity.canonical import Digest, digest_of_json

LEAST_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Contender:
    """A name with its identity."""

    alias: str
    """What is asked for."""
    behaviour: Digest
    """Its behaviour digest; of server and name where the server tells none."""
    identified: bool
    """Whether the server told the digest. Where it did not, nothing shows that two runs asked the same model."""

    @property
    def short(self) -> str:
        """For people: the name and the beginning of the digest."""
        return f"{self.alias}@{self.behaviour.removeprefix('sha256:')[:8]}"


async def resolve(client: ModelClient, name: str) -> Contender:
    """Ask the server what `name` stands for; `name@sha256:…` is the identity whose digest begins so.

    Where the name stands for another identity by now, and the server has that one under a name of its own, it is asked by that
    name: so two releases of one alias can be compared. Raises `NotFound` when the server has no such model, `Conflict` when
    nothing that it has is that identity.
    """
    alias, _, wanted = name.partition("@")
    entries = {entry.id: entry for entry in await client.models()}
    if alias not in entries:
        listed = ", ".join(entries) or "none"
        raise NotFound(f"{client.base_url} has no model {alias!r}; it has {listed}.", param="model")
    behaviour = entries[alias].identity
    if wanted:
        digits = wanted.removeprefix("sha256:").rstrip("…")
        if len(digits) < LEAST_DIGITS or not all(one in "0123456789abcdef" for one in digits):
            raise InvalidRequest(
                f"{name!r} names no identity; write {alias}@sha256: and {LEAST_DIGITS} hex digits or more.",
                param="model",
            )
        if behaviour is None:
            raise Conflict(
                f"{client.base_url} does not say which identity {alias} is; leave out @{wanted}.",
                param="model",
            )
        if not behaviour.removeprefix("sha256:").startswith(digits):
            others = [one for one in entries.values() if (one.identity or "").startswith(f"sha256:{digits}")]
            if len({one.identity for one in others}) == 1 and others[0].identity is not None:
                return Contender(others[0].id, others[0].identity, identified=True)
            raise Conflict(
                f"{alias} is {behaviour} now, not {wanted}, and no other model of the server is. Serve that identity, "
                "or ask for the name alone.",
                param="model",
                code="identity_changed",
            )
    if behaviour is None:
        return Contender(alias, digest_of_json({"server": client.base_url, "model": alias}), identified=False)
    return Contender(alias, behaviour, identified=True)
