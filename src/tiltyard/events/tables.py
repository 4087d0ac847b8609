"""The tables of the log: events and seals are the truth, contents are ciphertext, the rest is derived."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, MetaData, Table, Text

SCHEMA_VERSION = 2
"""Of everything but the projections; one more for each change, with a step in `migrations.py`."""
PROJECTIONS_VERSION = 1
"""One more for each change of a projection's columns or meaning: a log with fewer gets all of them anew."""

log_metadata = MetaData()
keys_metadata = MetaData()

log_info = Table(
    "log_info",
    log_metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

events = Table(
    "events",
    log_metadata,
    # Given out by the committer under the write lock, so that there is never a gap.
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("source", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("time_us", BigInteger, nullable=False),
    Column("subject", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("traceparent", Text),
    Column("data_json", Text, nullable=False),
    Column("unique_key", Text, unique=True),
    Column("leaf", LargeBinary(32), nullable=False),
    Index("events_by_type", "type", "sequence"),
    Index("events_by_subject", "subject", "sequence"),
)

seals = Table(
    "seals",
    log_metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("first_sequence", BigInteger, nullable=False),
    Column("last_sequence", BigInteger, nullable=False),
    Column("root", LargeBinary(32), nullable=False),
    Column("previous", LargeBinary(32), nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
    Column("mac", LargeBinary(32), nullable=False),
)

contents = Table(
    "contents",
    log_metadata,
    Column("id", Text, primary_key=True),
    Column("subject", Text, nullable=False, index=True),
    Column("key_id", Text, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
)

# Projections: recreated by `rebuild`, never a source.

identities = Table(
    "identities",
    log_metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("behaviour", Text, nullable=False, index=True),
    Column("deployment", Text, nullable=False),
    Column("time_us", BigInteger, nullable=False),
)

generations = Table(
    "generations",
    log_metadata,
    Column("generation", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False, unique=True),
    Column("time_us", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("behaviour", Text, nullable=False, index=True),
    Column("deployment", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("error", Text),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("time_to_first_token_ms", Float),
    Column("total_ms", Float, nullable=False),
)

battles = Table(
    "battles",
    log_metadata,
    Column("battle", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False, unique=True),
    Column("opened_us", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("voter", Text, nullable=False),
    Column("identity_a", Text, nullable=False),
    Column("identity_b", Text, nullable=False),
    Column("behaviour_a", Text, nullable=False),
    Column("behaviour_b", Text, nullable=False),
    Column("pair_probability", Float(53), nullable=False),
    Column("side_probability", Float(53), nullable=False),
    Column("policy", Text, nullable=False),
    Column("vote_token_digest", Text, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("choice", Text),
    Column("voted_us", BigInteger),
)

votes = Table(
    "votes",
    log_metadata,
    Column("battle", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False, unique=True),
    Column("time_us", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("voter", Text, nullable=False),
    Column("choice", Text, nullable=False),
    Column("identity_a", Text, nullable=False),
    Column("identity_b", Text, nullable=False),
    Column("behaviour_a", Text, nullable=False),
    Column("behaviour_b", Text, nullable=False),
    Column("pair_probability", Float(53), nullable=False),
    Column("side_probability", Float(53), nullable=False),
    Column("turns", Integer, nullable=False),
)

api_keys = Table(
    "api_keys",
    log_metadata,
    Column("key", Text, primary_key=True),
    # Of the newest event about the key: the greatest one tells whether anything has changed.
    Column("sequence", BigInteger, nullable=False, index=True),
    Column("issued_us", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("credential", Text, nullable=False),
    Column("scopes", Text, nullable=False),  # joined by commas
    Column("digest", Text, nullable=False),
    Column("expires_us", BigInteger),
    Column("revoked_us", BigInteger),
    Column("replaces", Text),
)

tenant_terms = Table(
    "tenant_terms",
    log_metadata,
    Column("tenant", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("terms_json", Text),  # NULL: what the file says
)

embeddings = Table(
    "embeddings",
    log_metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("time_us", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
)

# What people allow: asked by every reader of the vault (`permissions.py`).

consents = Table(
    "consents",
    log_metadata,
    Column("subject", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("purposes", Text, nullable=False),  # joined by commas; empty: all was taken back
)

data_terms = Table(
    "data_terms",
    log_metadata,
    Column("scope", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("purposes_json", Text, nullable=False),
)

expiries = Table(
    "expiries",
    log_metadata,
    Column("scope", Text, primary_key=True),
    Column("before_us", BigInteger, nullable=False),
)

# Of files that others made: kept apart from `votes`, so that no board counts them unasked.

imports = Table(
    "imports",
    log_metadata,
    Column("import_id", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False, unique=True),
    Column("started_us", BigInteger, nullable=False),
    Column("source", Text, nullable=False, index=True),
    Column("licence", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("file_digest", Text, nullable=False, index=True),
    Column("terms_json", Text, nullable=False),
    Column("finished_us", BigInteger),  # NULL: was cut, and counts nowhere
    Column("last_sequence", BigInteger),
    Column("file_rows", BigInteger),
    Column("votes", BigInteger),
    Column("judgments", BigInteger),
    Column("refused_json", Text),
    Column("withdrawn_us", BigInteger),
)

imported_votes = Table(
    "imported_votes",
    log_metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),  # in the event
    Column("import_id", Text, nullable=False, index=True),
    Column("line", BigInteger, nullable=False),
    Column("a", Text, nullable=False),
    Column("b", Text, nullable=False),
    Column("choice", Text, nullable=False),
    Column("voter", Text),
    Column("time_us", BigInteger),
    Column("turns", BigInteger),
    Column("id", Text),
    Column("key", Text),
    Column("anonymous", Boolean),
    Column("pair_probability", Float(53)),
    Column("traits_json", Text),
    Column("text_json", Text),
)

imported_judgments = Table(
    "imported_judgments",
    log_metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),  # in the event
    Column("import_id", Text, nullable=False, index=True),
    Column("line", BigInteger, nullable=False),
    Column("judge", Text, nullable=False),
    Column("template", Text),
    Column("question", Text),
    Column("turn", BigInteger),
    Column("a", Text, nullable=False),
    Column("b", Text),
    Column("verdict", Text),
    Column("verdict_swapped", Text),
    Column("both_orders", Boolean, nullable=False),
    Column("score", Float(53)),
    Column("time_us", BigInteger),
    Column("key", Text),
    Column("text_json", Text),
)

imported_pairs = Table(
    "imported_pairs",
    log_metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),  # in the event
    Column("import_id", Text, nullable=False, index=True),
    Column("line", BigInteger, nullable=False),
    Column("a", Text, nullable=False),
    Column("b", Text, nullable=False),
    Column("wins_a", BigInteger, nullable=False),
    Column("wins_b", BigInteger, nullable=False),
    Column("ties", BigInteger, nullable=False),
    Column("both_bad", BigInteger, nullable=False),
)

PROJECTIONS = (
    identities,
    generations,
    battles,
    votes,
    api_keys,
    tenant_terms,
    embeddings,
    consents,
    data_terms,
    expiries,
    imports,
    imported_votes,
    imported_judgments,
    imported_pairs,
)

# Seen, not told: written now and then, in nobody's way, and no event.

key_uses = Table(
    "key_uses",
    log_metadata,
    Column("key", Text, primary_key=True),
    Column("last_used_us", BigInteger, nullable=False),
)

# keys.db: kept apart from the log, so that a backup of the log cannot bring an erased person back.

subject_keys = Table(
    "subject_keys",
    keys_metadata,
    Column("key_id", Text, primary_key=True),
    Column("subject", Text, nullable=False, index=True),
    Column("wrapped", LargeBinary),  # NULL once destroyed
    Column("created_us", BigInteger, nullable=False),
    Column("destroyed_us", BigInteger),
)

key_info = Table(
    "key_info",
    keys_metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

# The newest seal of each log that these keys were used with: shows when a log was cut short.
heads = Table(
    "heads",
    keys_metadata,
    Column("log_id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
    Column("mac", LargeBinary(32), nullable=False),
)
