"""Conversations on WebSockets; those with a name outlive their socket for a while."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

import orjson

from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.identity.canonical import Json

KEEP_S = 1800.0
MAX_SESSIONS = 256
MAX_BYTES = 16 << 20
"""Of the named conversations of one tenant; the ones that were silent longest are forgotten beyond it."""
_NAME = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(eq=False)
class Session:
    """One conversation."""

    name: str | None = None
    messages: Sequence[Json] = ()
    model: Json = None
    turns: int = 0
    """Turns that were begun; what a client counts itself, if nothing was forgotten."""
    busy: bool = False
    """Whether an answer is being given, on whatever socket."""
    used_s: float = 0.0
    size_bytes: int = 0
    subjects: set[str] = field(default_factory=set)
    """Data subjects whose words it may hold."""
    _before: tuple[Sequence[Json], Json] = ((), None)
    """Messages and model before the turn under way."""

    def begin(self, messages: Sequence[Json], model: Json, subject: str) -> None:
        """A turn begins."""
        self.subjects.add(subject)
        self._before = self.messages, self.model
        self.messages, self.model, self.busy = messages, model, True
        self.turns += 1

    def answered(self, message: Mapping[str, Json]) -> None:
        """The answer, or as much as came of it, becomes part of the conversation."""
        self.messages = [*self.messages, message]
        self.busy = False

    def forget_words(self) -> None:
        """All that was said is gone."""
        self.messages, self._before = (), ((), self._before[1])
        self.subjects.clear()

    def undo(self) -> None:
        """The turn got no answer: it may be asked again, of the conversation and the model that were."""
        self.messages, self.model = self._before
        self.turns -= 1
        self.busy = False


@dataclass
class Sessions:
    """The named ones, by tenant and name."""

    _all: dict[str, dict[str, Session]] = field(default_factory=dict)
    _nameless: WeakSet[Session] = field(default_factory=WeakSet)
    """Those that end with their sockets."""

    def nameless(self) -> Session:
        """A conversation that ends with its socket."""
        session = Session()
        self._nameless.add(session)
        return session

    def forget(self, belongs: Callable[[str], bool]) -> int:
        """Empty the conversations that may hold words of some data subjects; returns how many."""
        held = [
            session
            for session in (*(one for own in self._all.values() for one in own.values()), *self._nameless)
            if any(map(belongs, session.subjects))
        ]
        for session in held:
            session.forget_words()
        return len(held)

    def named(self, tenant: str, name: Json) -> Session:
        """A tenant's conversation, new if there is none; raises `InvalidRequest`, `Conflict` while it is answered."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"session is {name!r:.60}; it must be 1 to 128 printable ASCII characters without spaces",
                param="session",
            )
        own = self._all.setdefault(tenant, {})
        _forget(own)
        session = own.pop(name, None) or Session(name)
        own[name] = session  # the last one is the one that was used last
        if session.busy:
            raise Conflict(f"session {name!r} is being answered on another socket", param="session")
        session.used_s = asyncio.get_running_loop().time()
        return session

    def measure(self, tenant: str, session: Session) -> None:
        """Note how much a conversation holds now."""
        session.size_bytes = len(orjson.dumps(session.messages))
        session.used_s = asyncio.get_running_loop().time()
        _forget(self._all[tenant])


def _forget(own: dict[str, Session]) -> None:
    """Drop what is too old or too much of one tenant's."""
    now_s, held = asyncio.get_running_loop().time(), 0
    for count, (name, session) in enumerate(reversed([*own.items()])):
        held += session.size_bytes
        old = session.used_s + KEEP_S < now_s
        if not session.busy and (old or count >= MAX_SESSIONS or (held > MAX_BYTES and count > 0)):
            del own[name]
