"""The event log: append durably, read, follow, verify, rebuild.

::

    log = EventLog.open(Path("log.db"), keys=Path("keys.db"))
    words = log.content("voter-7", b"Hello")
    event = await log.append(
        BattleTurnStarted(…, message=words.ref), subject="bat_…", source="tiltyard/arena", contents=[words]
    )                              # returns once both are on the disk
    with log.words("serve", reader="docs") as words_of:
        words_of.read(words.ref)   # b"Hello"
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, insert, select, update

from tiltyard.errors import ConfigurationError, ContentMissing, LogTampered, StorageFailed
from tiltyard.events.committer import Committer, Draft, newest_seal
from tiltyard.events.dialect import Database, open_database
from tiltyard.events.envelope import StoredEvent, check_name, check_traceparent, data_json, format_time
from tiltyard.events.expiring import Expiring
from tiltyard.events.ids import new_id
from tiltyard.events.master_key import MasterKey
from tiltyard.events.migrations import PROJECTIONS_FACT, set_fact
from tiltyard.events.permissions import (
    PermissionQueries,
    PurposeRefused,
    expired_before_us,
    of_subject,
    permission_of,
    person_of,
    scopes_of,
    written_us,
)
from tiltyard.events.places import KEYS, KeysPlace
from tiltyard.events.preparation import prepare_keys, prepare_log
from tiltyard.events.projections import clear, project
from tiltyard.events.queries import PAGE_EVENTS, Queries, read_page
from tiltyard.events.reading import Words
from tiltyard.events.schema import ContentRead, ContentRef, EventData, Purpose, SubjectErased
from tiltyard.events.seals import Sealer
from tiltyard.events.signing import Signature, Signer
from tiltyard.events.tables import PROJECTIONS_VERSION, contents, events, key_uses
from tiltyard.events.vault import NewContent, Vault
from tiltyard.events.verification import Head, HeadKeeper, Verification, VerifyReport
from tiltyard.events.writer import GroupCommitWriter

SOURCE = "tiltyard/events"
"""The CloudEvents `source` of what the log itself writes."""
HEAD_INTERVAL_S = 1.0
"""How often the newest seal is also written to the keys' database."""
FOLLOW_INTERVAL_S = 0.25
"""How soon `follow` sees what another process appended; this process's own appends wake it at once."""

_logger = logging.getLogger(__name__)


class Erased(NamedTuple):
    """What an erasure destroyed."""

    keys: int
    contents: int
    """Vault rows that were emptied."""


class EventLog(Queries, PermissionQueries):
    """An append-only log, its content vault and its projections."""

    def __init__(
        self,
        database: Database,
        log_id: str,
        keys: Database,
        master: MasterKey,
        clock_ns: Callable[[], int],
    ) -> None:
        super().__init__(database)
        self.id = log_id
        """Drawn when the log was made; tells it from every other log."""
        self._keys = keys
        self._clock_ns = clock_ns
        self._vault = Vault(keys, master, clock_ns)
        self._pepper = master.pepper
        self._signer = Signer(master.signing_seed)
        self.expiring = Expiring(database, keys)
        """Words whose time is over."""
        self._sealer = Sealer(master.seal_key)
        self._committer = Committer(database, self._vault, self._sealer, master.role)
        self._writer = GroupCommitWriter(self._committer.commit, self._committed)
        self._heads = HeadKeeper(keys, database, log_id, self._sealer)
        self._head_kept_at = float("-inf")
        self._followers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        keys: Path | KeysPlace,
        create: bool = True,
        clock_ns: Callable[[], int] = time.time_ns,
        report: Callable[[int, int], None] | None = None,
    ) -> EventLog:
        """Open the log at a path (SQLite) or a `postgresql://` URL, with its keys' database.

        The master key is `master.key` beside `keys` unless a `KeysPlace` names another file. Log and keys are made
        when missing; with `create=False` that is a `ConfigurationError`, as is a log of another version. `report` hears of
        `(events read, events in the log)` where projections have to be made anew. Raises `StorageFailed` when the disk refuses.
        """
        place = KeysPlace(keys, keys.with_name("master.key")) if isinstance(keys, Path) else keys
        if place.database == url:
            raise ConfigurationError(
                f"the keys cannot be in the log's own database: a backup of it would bring erased people back. "
                f"Name another one with {KEYS}"
            )
        with ExitStack() as if_refused:
            database = open_database(url)
            if_refused.callback(database.close)
            key_database = open_database(place.database)
            if_refused.callback(key_database.close)
            if not create:
                for one in (database, key_database):
                    one.refuse_to_be_made()
            master = MasterKey.load_or_create(place.master_key, create=create)
            prepare_keys(key_database, master, place.master_key)
            log_id, stale = prepare_log(database)
            log = cls(database, log_id, key_database, master, clock_ns)
            if stale:
                _logger.warning(
                    "recreating the projections of %s, a log of an earlier version", database.name
                )
                log.rebuild(report)
            if_refused.pop_all()
        return log

    async def append(
        self,
        data: EventData,
        *,
        subject: str,
        source: str,
        tenant: str = "default",
        traceparent: str | None = None,
        contents: Sequence[NewContent] = (),
    ) -> StoredEvent:
        """Append an event with the words that it names; returns once it is durable.

        Raises `Conflict` when its `unique_key()` is in the log, `StorageFailed` when the disk refuses,
        `InvalidRequest` for values that JSON cannot carry. Cancelled while still queued, it stores nothing;
        cancelled later, it may have been stored.
        """
        draft = self._draft(
            data, subject=subject, source=source, tenant=tenant, traceparent=traceparent, words=contents
        )
        self._writer.submit(draft)
        return await asyncio.wrap_future(draft.done)

    def append_blocking(
        self,
        data: EventData,
        *,
        subject: str,
        source: str,
        tenant: str = "default",
        traceparent: str | None = None,
        contents: Sequence[NewContent] = (),
    ) -> StoredEvent:
        """Do as `append` does, from a thread that may wait."""
        draft = self._draft(
            data, subject=subject, source=source, tenant=tenant, traceparent=traceparent, words=contents
        )
        self._writer.submit(draft)
        return draft.done.result()

    def content(self, subject: str, data: bytes) -> NewContent:
        """Encrypt words under a data subject's key; `append` takes the result, the event its `ref`."""
        return self._vault.encrypt(subject, data)

    def words(self, purpose: Purpose, *, reader: str, who: str = "") -> Words:
        """Open the vault for one purpose, as part `reader` of tiltyard on behalf of `who`; every reading is an event."""

        def record(event: ContentRead) -> None:
            self.append_blocking(event, subject=reader, source=SOURCE)

        return Words(purpose, reader=reader, who=who, read=self._plain, record=record)

    def own_words(self, reader: str) -> Words:
        """Open the vault to give words back to those from whom they came: no event, and never anybody else's eyes.

        `tests/events/test_readers_of_the_vault.py` has the list of those who may.
        """
        return Words("serve", reader=reader, who="", read=self._plain, record=None)

    def _plain(self, ref: ContentRef, purpose: Purpose | None) -> bytes:
        """Decrypt words, for a purpose or (`None`) to be compared and thrown away."""
        query = select(contents).where(contents.c.id == ref.id)
        with self._database.reading() as connection:
            if purpose is not None:
                age_us = self._clock_ns() // 1000 - written_us(ref.id)
                permission = permission_of(connection, ref.subject)
                if (why_not := permission.refusal(purpose, age_us)) is not None:
                    raise PurposeRefused(f"the words of {ref.subject} are not given out: {why_not}")
            row = connection.execute(query).first()
            expired_us = 0 if row is None or row.ciphertext else expired_before_us(connection, ref.subject)
        if row is None:
            raise ContentMissing(f"content {ref.id} of {ref.subject} is not in the vault")
        if row.subject != ref.subject:
            raise LogTampered(f"content {ref.id} does not belong to {ref.subject}")
        if not row.ciphertext:
            if written_us(ref.id) < expired_us:
                raise ContentMissing(
                    f"the words of {ref.subject} were kept until {format_time(expired_us)}",
                    code="content_expired",
                )
            self._vault.check_erased(ref, row.key_id)
        return self._vault.decrypt(ref, row.key_id, row.ciphertext)

    def erase_subject(self, subject: str, *, reason: str = "requested") -> Erased:
        """Destroy every key of a data subject, empty its rows of the vault and append the tombstone.

        A tenant's (or a source's) people go with it, a voter under both its names. Events, seals and projections stay as
        they are; the words cannot be read again. Blocks.
        """
        check_name(subject, "subject")
        subject = person_of(subject)
        destroyed = self._vault.destroy(subject)
        emptied = self.empty_rows(of_subject(contents.c.subject, subject))
        if destroyed or emptied or self.find(SubjectErased, subject=subject) is None:
            data = SubjectErased(erased=subject, keys_destroyed=destroyed, reason=reason)
            self.append_blocking(data, subject=subject, source=SOURCE)
        # Words that were on their way when the keys went may have brought a new one; behind the tombstone none can.
        late = self._vault.destroy(subject)
        if late:
            emptied += self.empty_rows(of_subject(contents.c.subject, subject))
        self._database.settle()
        return Erased(destroyed + late, emptied)

    def erased_since(self, subject: str, moment_us: int) -> bool:
        """Whether a subject (or its whole tenant) was erased after a moment. Blocks."""
        query = select(events.c.sequence).where(
            events.c.subject.in_(scopes_of(subject)),
            events.c.type == SubjectErased.TYPE,
            events.c.time_us >= moment_us,
        )
        with self._database.reading() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def empty_rows(self, chosen: ColumnElement[bool]) -> int:
        """Empty rows of the vault whose keys are gone or whose time is over; returns how many. Blocks."""
        statement = update(contents).where(chosen, func.length(contents.c.ciphertext) > 0)
        with self._database.writing() as connection:
            return connection.execute(statement.values(ciphertext=b"")).rowcount

    def sign(self, data: bytes) -> Signature:
        """Sign bytes as the log's owner."""
        return self._signer.sign(data)

    def head(self) -> Head | None:
        """The newest seal."""
        with self._database.reading() as connection:
            seal = newest_seal(connection)
        return None if seal is None else Head(seal.number, seal.hash)

    def keyed_digest(self, secret: str) -> str:
        """HMAC-SHA256 of an API key under a key derived from the master key, in hexadecimal."""
        return hmac.new(self._pepper, secret.encode(), "sha256").hexdigest()

    def note_key_uses(self, uses: Mapping[str, int]) -> None:
        """Keep when API keys were last used (microseconds since 1970, by key id); a note, no event. Blocks."""
        with self._database.writing() as connection:
            for key, at_us in uses.items():
                known = update(key_uses).where(key_uses.c.key == key).values(last_used_us=at_us)
                if not connection.execute(known).rowcount:
                    connection.execute(insert(key_uses).values(key=key, last_used_us=at_us))

    async def follow(
        self,
        after: int = 0,
        *,
        types: Collection[type[EventData]] | None = None,
        subject: str | None = None,
    ) -> AsyncIterator[StoredEvent]:
        """Yield events beyond `after` for ever, as they become durable in any process."""
        wake = asyncio.Event()
        follower = (asyncio.get_running_loop(), wake)
        self._followers.add(follower)
        try:
            while True:
                wake.clear()
                newest = await asyncio.to_thread(self.last_sequence)
                if newest > after:
                    page = await asyncio.to_thread(self._page, after, types, subject)
                    for event in page:
                        yield event
                    if len(page) == PAGE_EVENTS:
                        after = page[-1].sequence
                        continue
                    # Asked before the page: what came in between is read next time, not skipped.
                    after = max(newest, page[-1].sequence if page else 0)
                try:
                    await asyncio.wait_for(wake.wait(), FOLLOW_INTERVAL_S)
                except TimeoutError:
                    continue
        finally:
            self._followers.discard(follower)

    def verify(
        self,
        *,
        head: Head | None = None,
        check_contents: bool = False,
        report: Callable[[int, int], None] | None = None,
    ) -> VerifyReport:
        """Check every seal and event, and stop at the first fault; see `docs/events.md` for what it can show.

        `head` is a seal that somebody wrote down: a log that no longer holds it is faulty. `report` hears of
        `(events checked, events in the log)`.
        """
        heads = (self._heads.kept(), head)
        return Verification(
            self._database,
            self._sealer,
            heads_to_meet=tuple(one for one in heads if one is not None),
            read_content=(lambda ref: self._plain(ref, None)) if check_contents else None,
            report=report,
        ).run()

    def forget_head(self) -> None:
        """Forget the newest seal kept in the keys' database: for a log restored from an older backup."""
        self._heads.forget()

    def rebuild(self, report: Callable[[int, int], None] | None = None) -> int:
        """Recreate every projection from the events, in one transaction; returns how many events were read.

        Appends wait meanwhile; readers see the old projections until it is done.
        """
        done = 0
        with self._database.writing() as connection:
            clear(connection)
            total = connection.execute(select(func.count()).select_from(events)).scalar_one()
            while page := read_page(connection, after=done):
                project(connection, page)
                done = page[-1].sequence
                if report is not None:
                    report(done, total)
            set_fact(connection, PROJECTIONS_FACT, str(PROJECTIONS_VERSION))
        return done

    def close(self) -> None:
        """Commit what is waiting and give everything back."""
        self._writer.close()
        self._keep_head()
        self._database.close()
        self._keys.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _page(
        self, after: int, types: Collection[type[EventData]] | None, subject: str | None
    ) -> list[StoredEvent]:
        return list(self.read(after=after, types=types, subject=subject, limit=PAGE_EVENTS))

    def _committed(self) -> None:
        for loop, wake in tuple(self._followers):
            try:
                loop.call_soon_threadsafe(wake.set)
            except RuntimeError:  # its loop was closed without closing the iterator
                self._followers.discard((loop, wake))
        if time.monotonic() - self._head_kept_at >= HEAD_INTERVAL_S:
            self._keep_head()

    def _keep_head(self) -> None:
        if (seal := self._committer.last_seal) is None:
            return
        try:
            self._heads.keep(seal)
        except StorageFailed as error:
            # The events are safe; only the proof against a shortened log lags behind.
            _logger.warning("could not keep the head of the log: %s", error.message)
        self._head_kept_at = time.monotonic()

    def _draft(
        self,
        data: EventData,
        *,
        subject: str,
        source: str,
        tenant: str,
        traceparent: str | None,
        words: Sequence[NewContent],
    ) -> Draft:
        return Draft(
            id=new_id(),
            source=check_name(source, "source"),
            time_us=self._clock_ns() // 1000,
            subject=check_name(subject, "subject"),
            tenant=check_name(tenant, "tenant"),
            traceparent=check_traceparent(traceparent),
            data=data,
            data_json=data_json(data),
            contents=tuple(words),
            done=Future(),
        )
