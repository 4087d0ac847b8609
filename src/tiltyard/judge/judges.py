"""Who judges: a model behind an OpenAI-compatible server, named by the digest of all that is known of it.

A model of a tiltyard is its behaviour digest, whatever name and address it was asked under. Any other model is a name at
a server, and may change behind both: `answered_as` tells when it does, and a `pin` tells judges apart that nothing else does
(FastChat #2284, #3302; AlpacaEval #126, #130).
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import JsonValue

from tiltyard.client import ModelClient
from tiltyard.client.asking import DIALECTS
from tiltyard.client.forms import Dialect
from tiltyard.errors import NotFound
from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.identity.manifest import Frozen

Holding = Literal["grammar", "text"]
"""Whether the engine holds a verdict to its form, or it is read from the text."""
GRAMMAR: frozenset[Dialect] = frozenset({"tiltyard", "vllm", "llama.cpp"})
"""Servers that hold an answer to a grammar; others may take the demand and ignore it, so their text is read."""


class Judge(Frozen):
    """A model that judges, and how it is asked."""

    name: str
    """The model name to ask for."""
    server: str
    """Host and port, without any credentials."""
    behaviour: Digest | None = None
    """Behaviour digest, where the server names one."""
    pin: str = ""
    """What a person says it is (`2024-06-13`), for servers whose names move."""
    temperature: float = 0.0
    """Sampling temperature."""
    held: Holding
    """How its verdicts are had."""
    dialect: Dialect
    """How the server is asked for a form."""

    @property
    def ours(self) -> bool:
        """Whether a tiltyard serves it."""
        return self.behaviour is not None

    def specification(self) -> dict[str, JsonValue]:
        """What the digest names."""
        who: dict[str, JsonValue] = (
            {"behaviour": self.behaviour}
            if self.behaviour is not None
            else {"server": self.server, "model": self.name, "dialect": self.dialect}
        )
        return {**who, "pin": self.pin, "temperature": self.temperature, "held": self.held}

    @property
    def digest(self) -> Digest:
        """Names the judge in every judgment."""
        return digest_of_json(self.specification())


async def find_judge(
    client: ModelClient,
    name: str,
    *,
    pin: str = "",
    temperature: float = 0.0,
    held: Holding | Literal["auto"] = "auto",
) -> Judge:
    """Ask a server who a model is; raises `NotFound` naming those there are, if it is not among them.

    A server without a list of models is taken at its word.
    """
    try:
        entries = await client.models()
    except NotFound:
        entries = []
    if entries and all(entry.id != name for entry in entries):
        known = ", ".join(entry.id for entry in entries[:12])
        raise NotFound(f"{client.base_url} serves no {name!r}; it serves {known}", param="judge")
    behaviour = next((entry.identity for entry in entries if entry.id == name), None)
    ours = any(entry.identity is not None for entry in entries)
    owner = next((entry.owned_by for entry in entries), "")
    dialect: Dialect = "tiltyard" if ours else DIALECTS.get(owner, "openai")
    if held == "auto":
        held = "grammar" if dialect in GRAMMAR else "text"
    return Judge(
        name=name,
        server=urlsplit(client.base_url).netloc.rpartition("@")[2],
        behaviour=behaviour,
        pin=pin,
        temperature=temperature,
        held=held,
        dialect=dialect,
    )
