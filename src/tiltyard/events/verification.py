"""Checks a log against its seals and names the first fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import delete, func, insert, select, update

from tiltyard.errors import ContentMissing, InvalidRequest, LogTampered, StorageFailed
from tiltyard.events.committer import newest_seal
from tiltyard.events.dialect import Database
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.queries import envelope_columns, stored_event
from tiltyard.events.schema import ContentRef, EventData
from tiltyard.events.seals import Seal, Sealer, leaf_hash, merkle_root
from tiltyard.events.tables import events, heads, seals
from tiltyard.identity.manifest import Frozen

PAGE_ROWS = 1000


@dataclass(frozen=True)
class Head:
    """The number and hash of a seal."""

    number: int
    hash: bytes

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read `<number>:<64 hex digits>`, as `tiltyard events verify` prints it."""
        number, _, digits = text.strip().partition(":")
        try:
            head = cls(int(number), bytes.fromhex(digits))
        except ValueError:
            head = cls(0, b"")
        if head.number < 1 or len(head.hash) != 32:
            raise InvalidRequest(f"head {text!r} is not <number>:<64 hex digits>", param="head")
        return head

    def __str__(self) -> str:
        return f"{self.number}:{self.hash.hex()}"


@dataclass(frozen=True)
class Fault:
    """The first thing that is wrong."""

    message: str
    seal: int | None = None
    sequence: int | None = None


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found."""

    events: int
    """Events checked."""
    seals: int
    """Seals checked."""
    head: Head | None
    """The newest seal; write it down elsewhere to notice a shortened log later."""
    fault: Fault | None
    contents: int = 0
    """Words decrypted and compared with their digests."""
    contents_erased: int = 0
    """Words whose key was destroyed or that are gone."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.fault is None

    def raise_if_faulty(self) -> None:
        """Raise `LogTampered` with the first fault."""
        if self.fault is not None:
            raise LogTampered(self.fault.message)


class HeadKeeper:
    """Keeps a log's newest seal in the keys' database, where whoever shortens the log may not reach."""

    def __init__(self, keys: Database, database: Database, log_id: str, sealer: Sealer) -> None:
        self._keys = keys
        self._database = database
        self._log_id = log_id
        self._sealer = sealer

    def keep(self, seal: Seal) -> None:
        """Remember a seal unless a later one is remembered already.

        Raises `LogTampered` (and remembers the old one) when the log no longer holds the one remembered: new
        appends must not paper over a cut.
        """
        if (kept := self.kept()) is not None:
            query = select(seals.c.hash).where(seals.c.number == kept.number)
            with self._database.reading() as connection:
                held = connection.execute(query).scalar()
            if held != kept.hash:
                raise LogTampered(
                    f"{self._database.name} no longer holds seal {kept.number}, which had been made; "
                    "run `tiltyard events verify`"
                )
        with self._keys.writing() as connection:
            number = connection.execute(select(heads.c.number).where(heads.c.log_id == self._log_id)).scalar()
            values = {"number": seal.number, "hash": seal.hash, "mac": seal.mac}
            if number is None:
                connection.execute(insert(heads).values(log_id=self._log_id, **values))
            elif number < seal.number:
                connection.execute(update(heads).where(heads.c.log_id == self._log_id).values(**values))

    def forget(self) -> None:
        """Remember nothing of this log."""
        with self._keys.writing() as connection:
            connection.execute(delete(heads).where(heads.c.log_id == self._log_id))

    def kept(self) -> Head | None:
        """Return the remembered head; raises `LogTampered` if it was not written with this master key."""
        with self._keys.reading() as connection:
            row = connection.execute(select(heads).where(heads.c.log_id == self._log_id)).first()
        if row is None:
            return None
        if row.mac != self._sealer.mac(row.hash):
            raise LogTampered(f"the head kept in {self._keys.name} was not made with this log's master key")
        return Head(row.number, row.hash)


@dataclass(frozen=True)
class _SealedRow:
    event: StoredEvent
    leaf: bytes
    unique_key: str | None


class _Found(Exception):
    def __init__(self, message: str, *, seal: int | None = None, sequence: int | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(message, seal, sequence)


class Verification:
    """One walk over a log; `run` once."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        heads_to_meet: tuple[Head, ...],
        read_content: Callable[[ContentRef], bytes] | None,
        report: Callable[[int, int], None] | None,
        *,
        after: Seal | None = None,
    ) -> None:
        """`after` is a seal that is taken as it is: only what stands behind it is checked."""
        self._database = database
        self._sealer = sealer
        self._heads = heads_to_meet
        self._read_content = read_content
        self._report = report
        self._after = after
        self._seal = after
        self._events = 0
        self._contents = 0
        self._erased = 0

    def run(self) -> VerifyReport:
        """Walk from the first seal to the last; stop at the first fault."""
        fault = None
        try:
            self._walk()
        except _Found as found:
            fault = found.fault
        return VerifyReport(
            events=self._events,
            seals=self._seal.number if self._seal else 0,
            head=Head(self._seal.number, self._seal.hash) if self._seal else None,
            fault=fault,
            contents=self._contents,
            contents_erased=self._erased,
        )

    def _walk(self) -> None:
        with self._database.reading() as connection:
            newest = newest_seal(connection)
            last = newest.last_sequence if newest else 0
            outside = connection.execute(
                select(func.min(events.c.sequence)).where(
                    (events.c.sequence > last) | (events.c.sequence < 1)
                )
            ).scalar()
        # What is sealed never changes, so from here on each page may be its own transaction.
        begin = self._after
        rows = self._rows(last, after=begin.last_sequence if begin else 0)
        for seal in self._seals(newest.number if newest else 0, after=begin.number if begin else -1):
            self._check_seal(seal, list(islice(rows, max(0, seal.last_sequence - seal.first_sequence + 1))))
            self._seal = seal
            if self._report is not None:
                self._report(self._events, last)
        if outside is not None:
            raise _Found(
                f"event {outside} is under no seal: it was inserted behind our back", sequence=outside
            )
        ends_at = self._seal.number if self._seal else 0
        for head in self._heads:
            if head.number > ends_at:
                raise _Found(
                    f"the log was cut short: it ends at seal {ends_at}, but seal {head.number} had been made",
                    seal=ends_at,
                )

    def _check_seal(self, seal: Seal, rows: list[_SealedRow]) -> None:
        if (fault := self._sealer.fault_in(seal, self._seal)) is not None:
            raise _Found(fault, seal=self._seal.number + 1 if self._seal else 1)
        for head in self._heads:
            if head.number == seal.number and head.hash != seal.hash:
                raise _Found(
                    f"seal {seal.number} is not the one that was written down ({head}): "
                    "the log was rewritten",
                    seal=seal.number,
                )
        leaves = []
        for place, row in enumerate(rows):
            expected = seal.first_sequence + place
            if row.event.sequence != expected:
                raise _Found(f"event {expected} is missing", seal=seal.number, sequence=expected)
            leaves.append(self._check_event(row, seal.number))
        if len(leaves) != seal.last_sequence - seal.first_sequence + 1:
            missing = seal.first_sequence + len(leaves)
            raise _Found(f"event {missing} is missing", seal=seal.number, sequence=missing)
        if merkle_root(leaves) != seal.root:
            raise _Found(
                f"events {seal.first_sequence} to {seal.last_sequence} do not match the root of seal "
                f"{seal.number}: at least one of them was changed together with its own hash",
                seal=seal.number,
                sequence=seal.first_sequence,
            )
        self._events += len(leaves)

    def _check_event(self, row: _SealedRow, seal: int) -> bytes:
        event = row.event
        sequence = event.sequence
        changed = _Found(f"event {sequence} ({event.id}) was changed", seal=seal, sequence=sequence)
        try:
            leaf = leaf_hash(event.canonical_bytes())
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise changed from error  # a column holds something that we never write
        if leaf != row.leaf:
            raise changed
        try:
            data = event.data
        except StorageFailed as error:
            raise _Found(f"event {sequence}: {error.message}", seal=seal, sequence=sequence) from error
        if data.unique_key() != row.unique_key:
            raise _Found(
                f"the unique key of event {sequence} was changed to {row.unique_key!r}",
                seal=seal,
                sequence=sequence,
            )
        self._check_contents(data, seal, sequence)
        return leaf

    def _check_contents(self, data: EventData, seal: int, sequence: int) -> None:
        if self._read_content is None:
            return
        for _, ref in content_refs_of(data):
            try:
                self._read_content(ref)
            except ContentMissing as missing:
                if missing.code != ContentMissing.default_code:
                    self._erased += 1
                    continue
                raise _Found(
                    f"words named by event {sequence} are gone: {missing.message}",
                    seal=seal,
                    sequence=sequence,
                ) from missing
            except LogTampered as error:
                raise _Found(
                    f"words named by event {sequence} were changed: {error.message}",
                    seal=seal,
                    sequence=sequence,
                ) from error
            self._contents += 1

    def _seals(self, last: int, *, after: int) -> Iterator[Seal]:
        number = after
        while True:
            query = select(seals).where(seals.c.number > number, seals.c.number <= last)
            with self._database.reading() as connection:
                page = connection.execute(query.order_by(seals.c.number).limit(PAGE_ROWS)).mappings().all()
            for row in page:
                yield Seal(**row)
            if len(page) < PAGE_ROWS:
                return
            number = page[-1]["number"]

    def _rows(self, last: int, *, after: int) -> Iterator[_SealedRow]:
        sequence = after
        while True:
            query = select(*envelope_columns(), events.c.leaf, events.c.unique_key).where(
                events.c.sequence > sequence, events.c.sequence <= last
            )
            with self._database.reading() as connection:
                page = connection.execute(query.order_by(events.c.sequence).limit(PAGE_ROWS)).mappings().all()
            for row in page:
                yield _SealedRow(stored_event(row), row["leaf"], row["unique_key"])
            if len(page) < PAGE_ROWS:
                return
            sequence = page[-1]["sequence"]


def content_refs_of(data: EventData) -> list[tuple[str, ContentRef]]:
    """Return the words that an event names, each with the name of its field, such as `message` or `votes[3].text`."""
    found: list[tuple[str, ContentRef]] = []
    for name, value in data:
        if isinstance(value, ContentRef):
            found.append((name, value))
        elif isinstance(value, tuple):
            found += [
                (f"{name}[{place}].{field}", ref)
                for place, part in enumerate(value)
                if isinstance(part, Frozen)
                for field, ref in part
                if isinstance(ref, ContentRef)
            ]
    return found
