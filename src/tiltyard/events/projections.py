"""Tables derived from the log, kept up in the transaction that appends, and recreated by `rebuild`.

`project` is the only code that fills them, live and rebuilding alike. It never refuses an event: what
happened, happened; a vote for a battle that nobody opened is still in `votes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import cast

from sqlalchemy import (
    Connection,
    Delete,
    Insert,
    Update,
    bindparam,
    case,
    delete,
    insert,
    inspect,
    or_,
    update,
)

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.schema import (
    ApiKeyEnded,
    ApiKeyIssued,
    BattleOpened,
    BattleTurnStarted,
    ConsentGiven,
    ConsentWithdrawn,
    ContentExpired,
    DataTermsSet,
    GenerationFinished,
    IdentityRegistered,
    JudgmentsImported,
    PairCountsImported,
    TenantSet,
    TextsEmbedded,
    VoteCast,
    VoteImportFinished,
    VoteImportStarted,
    VoteImportWithdrawn,
    VotesImported,
    VoteWithdrawn,
)
from tiltyard.events.tables import (
    PROJECTIONS,
    api_keys,
    battles,
    consents,
    data_terms,
    embeddings,
    expiries,
    generations,
    identities,
    imported_judgments,
    imported_pairs,
    imported_votes,
    imports,
    tenant_terms,
    votes,
)
from tiltyard.identity.canonical import Json, canonical_json

_VOTE_COLUMNS = (
    *("line", "a", "b", "choice", "voter", "time_us", "turns", "id", "key", "anonymous", "pair_probability"),
)
_JUDGMENT_COLUMNS = (
    *("line", "judge", "template", "question", "turn", "a", "b", "verdict", "verdict_swapped", "both_orders"),
    *("score", "time_us", "key"),
)

Change = tuple[str, dict[str, object]]
"""The name of a statement in `_STATEMENTS` (its first word is the table), and its parameters."""

_STATEMENTS: MappingProxyType[str, Insert | Update | Delete] = MappingProxyType(
    {
        "identity": insert(identities),
        "generation": insert(generations),
        "battle": insert(battles),
        "vote": insert(votes),
        "battle_turn": update(battles)
        .where(battles.c.battle == bindparam("of"))
        .values(turns=battles.c.turns + 1),
        "battle_voted": update(battles)
        .where(battles.c.battle == bindparam("of"))
        .values(choice=bindparam("chosen"), voted_us=bindparam("at_us")),
        "vote_withdrawn": delete(votes).where(votes.c.battle == bindparam("of")),
        "battle_withdrawn": update(battles)
        .where(battles.c.battle == bindparam("of"))
        .values(choice=None, voted_us=None),
        "embedding": insert(embeddings),
        "tenant_unset": delete(tenant_terms).where(tenant_terms.c.tenant == bindparam("of")),
        "tenant_set": insert(tenant_terms),
        "consent_over": delete(consents).where(consents.c.subject == bindparam("of")),
        "consent": insert(consents),
        "terms_over": delete(data_terms).where(data_terms.c.scope == bindparam("of")),
        "terms": insert(data_terms),
        "expiry_over": delete(expiries).where(expiries.c.scope == bindparam("of")),
        "expiry": insert(expiries),
        "import": insert(imports),
        "import_finished": update(imports)
        .where(imports.c.import_id == bindparam("of"))
        .values(
            finished_us=bindparam("at_us"),
            last_sequence=bindparam("event"),
            file_rows=bindparam("found"),
            votes=bindparam("taken"),
            judgments=bindparam("judged"),
            refused_json=bindparam("left_out"),
        ),
        "import_withdrawn": update(imports)
        .where(imports.c.import_id == bindparam("of"))
        .values(withdrawn_us=bindparam("at_us")),
        "importedvote": insert(imported_votes),
        "importedjudgment": insert(imported_judgments),
        "importedpair": insert(imported_pairs),
        "key": insert(api_keys),
        "key_revoked": update(api_keys)
        .where(api_keys.c.key == bindparam("of"))
        .values(sequence=bindparam("event"), revoked_us=bindparam("at_us")),
        "key_rotated": update(api_keys)
        .where(api_keys.c.key == bindparam("of"))
        .values(
            sequence=bindparam("event"),
            expires_us=case(
                (
                    or_(api_keys.c.expires_us.is_(None), api_keys.c.expires_us > bindparam("at_us")),
                    bindparam("at_us"),
                ),
                else_=api_keys.c.expires_us,
            ),
        ),
    }
)


def project(connection: Connection, events: Iterable[StoredEvent]) -> None:
    """Apply events, in their order, to every projection."""
    changes = [change for event in events for change in _changes(event)]
    # Tables do not depend on each other, so each may have all its changes at once, still in their order.
    changes.sort(key=lambda change: change[0].partition("_")[0])
    for name, group in groupby(changes, key=itemgetter(0)):
        connection.execute(_STATEMENTS[name], [parameters for _, parameters in group])


def clear(connection: Connection) -> None:
    """Empty every projection, and give each the shape that it has now."""
    found = inspect(connection)
    for table in PROJECTIONS:
        if found.has_table(table.name):
            if {column["name"] for column in found.get_columns(table.name)} == set(table.columns.keys()):
                connection.execute(delete(table))
                continue  # made anew, it would lose what it grants to others
            table.drop(connection)
        table.create(connection)


def _changes(event: StoredEvent) -> Iterator[Change]:
    data = event.data
    common = {"sequence": event.sequence, "time_us": event.time_us}
    match data:
        case IdentityRegistered():
            yield (
                "identity",
                common | {"name": data.name, "behaviour": data.behaviour, "deployment": data.deployment},
            )
        case GenerationFinished():
            yield (
                "generation",
                common
                | {
                    "generation": data.generation,
                    "tenant": event.tenant,
                    "identity": data.identity,
                    "behaviour": data.behaviour,
                    "deployment": data.deployment,
                    "worker": data.worker,
                    "error": data.error,
                    "prompt_tokens": data.prompt_tokens,
                    "cached_tokens": data.cached_tokens,
                    "completion_tokens": data.completion_tokens,
                    "time_to_first_token_ms": data.time_to_first_token_ms,
                    "total_ms": data.total_ms,
                },
            )
        case BattleOpened():
            a, b = data.contestants if data.contestants[0].side == "a" else data.contestants[::-1]
            yield (
                "battle",
                {
                    "battle": data.battle,
                    "sequence": event.sequence,
                    "opened_us": event.time_us,
                    "tenant": event.tenant,
                    "voter": data.voter,
                    "identity_a": a.identity,
                    "identity_b": b.identity,
                    "behaviour_a": a.behaviour,
                    "behaviour_b": b.behaviour,
                    "pair_probability": data.pair_probability,
                    "side_probability": data.side_probability,
                    "policy": data.policy,
                    "vote_token_digest": data.vote_token_digest,
                    "turns": 0,
                    "choice": None,
                    "voted_us": None,
                },
            )
        case BattleTurnStarted(attempt=0):
            yield "battle_turn", {"of": data.battle}
        case VoteCast():
            yield (
                "vote",
                common
                | {
                    "battle": data.battle,
                    "tenant": event.tenant,
                    "voter": data.voter,
                    "choice": data.choice,
                    "identity_a": data.identity_a,
                    "identity_b": data.identity_b,
                    "behaviour_a": data.behaviour_a,
                    "behaviour_b": data.behaviour_b,
                    "pair_probability": data.pair_probability,
                    "side_probability": data.side_probability,
                    "turns": data.turns,
                },
            )
            yield "battle_voted", {"of": data.battle, "chosen": data.choice, "at_us": event.time_us}
        case VoteWithdrawn():
            yield "vote_withdrawn", {"of": data.battle}
            yield "battle_withdrawn", {"of": data.battle}
        case ApiKeyIssued():
            yield (
                "key",
                {
                    "key": data.key,
                    "sequence": event.sequence,
                    "issued_us": event.time_us,
                    "tenant": data.tenant,
                    "label": data.label,
                    "credential": data.credential,
                    "scopes": ",".join(data.scopes),
                    "digest": data.digest,
                    "expires_us": data.expires_us,
                    "revoked_us": None,
                    "replaces": data.replaces,
                },
            )
        case TextsEmbedded():
            yield "embedding", common | {"tenant": event.tenant, "prompt_tokens": data.prompt_tokens}
        case TenantSet():
            yield "tenant_unset", {"of": data.tenant}
            yield (
                "tenant_set",
                {
                    "tenant": data.tenant,
                    "sequence": event.sequence,
                    "terms_json": None if data.terms is None else _json(data.terms),
                },
            )
        case ConsentGiven():
            yield from _consent(event, data.voter, data.version, data.purposes)
        case ConsentWithdrawn():
            yield from _consent(event, data.voter, data.version, data.left)
        case DataTermsSet():
            yield "terms_over", {"of": data.scope}
            yield (
                "terms",
                {
                    "scope": data.scope,
                    "sequence": event.sequence,
                    "purposes_json": _json(cast(Json, data.purposes)),
                },
            )
        case ContentExpired():
            yield "expiry_over", {"of": data.scope}
            yield "expiry", {"scope": data.scope, "before_us": data.before_us}
        case VoteImportStarted():
            yield (
                "import",
                {
                    "import_id": data.import_id,
                    "sequence": event.sequence,
                    "started_us": event.time_us,
                    "source": data.source,
                    "licence": data.licence,
                    "format": data.format,
                    "file_name": data.file_name,
                    "file_digest": data.file_digest,
                    "terms_json": _json(data.terms),
                },
            )
        case VotesImported():
            for place, vote in enumerate(data.votes):
                yield (
                    "importedvote",
                    {
                        **_place(event, data.import_id, place),
                        **{name: getattr(vote, name) for name in _VOTE_COLUMNS},
                        "traits_json": _json(vote.traits) if vote.traits else None,
                        "text_json": vote.text and vote.text.model_dump_json(),
                    },
                )
        case JudgmentsImported():
            for place, judgment in enumerate(data.judgments):
                yield (
                    "importedjudgment",
                    {
                        **_place(event, data.import_id, place),
                        **{name: getattr(judgment, name) for name in _JUDGMENT_COLUMNS},
                        "text_json": judgment.text and judgment.text.model_dump_json(),
                    },
                )
        case PairCountsImported():
            for place, pair in enumerate(data.pairs):
                yield "importedpair", {**_place(event, data.import_id, place), **vars(pair)}
        case VoteImportFinished():
            yield (
                "import_finished",
                {
                    "of": data.import_id,
                    "at_us": event.time_us,
                    "event": event.sequence,
                    "found": data.rows,
                    "taken": data.votes,
                    "judged": data.judgments,
                    "left_out": _json([one.model_dump() for one in data.refused]),
                },
            )
        case VoteImportWithdrawn():
            yield "import_withdrawn", {"of": data.import_id, "at_us": event.time_us}
        case ApiKeyEnded():
            yield f"key_{data.reason}", {"of": data.key, "event": event.sequence, "at_us": data.at_us}
        case _:
            return


def _consent(event: StoredEvent, subject: str, version: str, purposes: Iterable[str]) -> Iterator[Change]:
    yield "consent_over", {"of": subject}
    yield (
        "consent",
        {
            "subject": subject,
            "sequence": event.sequence,
            "version": version,
            "purposes": ",".join(purposes),
        },
    )


def _place(event: StoredEvent, import_id: str, place: int) -> dict[str, object]:
    return {"sequence": event.sequence, "place": place, "import_id": import_id}


def _json(value: Json) -> str:
    # Canonical, so that a number is written alike before and after it was read back (0.0 and 0).
    return canonical_json(value).decode()
