"""What a worker that only evaluates may append, and the PostgreSQL role that holds it to that.

On SQLite the key decides: who has an evaluation key is refused everything else here, but who can write the file could write it
by other means. On PostgreSQL the server decides, whatever the program says.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.permissions import HOUSE
from tiltyard.events.schema import (
    AnswerScored,
    ContentRead,
    EvalItemFailed,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunFinished,
    EvalRunStarted,
    EventData,
    JudgeRegistered,
    JudgesBridged,
    JudgmentMade,
    PreferenceModelTrained,
    ReviewAssigned,
    ReviewGiven,
    RubricRegistered,
)
from tiltyard.events.tables import PROJECTIONS, contents, events, log_info, seals

Role = Literal["owner", "evaluation"]

EVALUATION_EVENTS: Final[tuple[type[EventData], ...]] = (
    AnswerScored,
    ContentRead,
    EvalItemFailed,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunFinished,
    EvalRunStarted,
    JudgeRegistered,
    JudgesBridged,
    JudgmentMade,
    PreferenceModelTrained,
    ReviewAssigned,
    ReviewGiven,
    RubricRegistered,
)
"""What evaluation finds out; nothing that steers traffic, hands out keys, speaks for people or makes models known."""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class RoleRefused(InvalidRequest):
    """The credential is not one that may do this."""

    status = 403
    default_code = "role_not_allowed"


def role_refusal(role: Role, data: EventData) -> RoleRefused | None:
    """Why a holder of such a key may not append an event; `None`: it may."""
    if role == "owner" or isinstance(data, EVALUATION_EVENTS):
        return None
    return RoleRefused(
        f"an evaluation key cannot append {data.TYPE}: it records what evaluation found out, and steers nothing. "
        "Use the key of the log's owner."
    )


def evaluation_role_sql(role: str, *, schema: str = "public") -> list[str]:
    """Statements by which the owner of a log's tables makes a PostgreSQL role for evaluation workers.

    It reads events, appends those of `EVALUATION_EVENTS`, and of the vault sees rows of nobody but the house. The owner of the
    tables, as whom the servers connect, is bound by no policy. Raises `ConfigurationError` for a name that needs quoting.
    """
    for name in (role, schema):
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name[:40]!r} is no name of a role or schema; use up to 63 of a-z, 0-9 and _, not beginning with a digit"
            )
    types = ", ".join(f"'{one.TYPE}'" for one in EVALUATION_EVENTS)
    house = ", ".join(f"'{one}'" for one in sorted(HOUSE))
    read = ", ".join(f"{schema}.{table.name}" for table in (log_info, events, seals, contents, *PROJECTIONS))
    return [
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT ON {read} TO {role}",
        f"GRANT INSERT ON {schema}.{events.name}, {schema}.{seals.name}, {schema}.{contents.name} TO {role}",
        f"ALTER TABLE {schema}.{events.name} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY {role}_reads ON {schema}.{events.name} FOR SELECT TO {role} USING (true)",
        f"CREATE POLICY {role}_appends ON {schema}.{events.name} FOR INSERT TO {role} WITH CHECK (type IN ({types}))",
        f"ALTER TABLE {schema}.{contents.name} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY {role}_reads ON {schema}.{contents.name} FOR SELECT TO {role} USING (subject IN ({house}))",
        f"CREATE POLICY {role}_keeps ON {schema}.{contents.name} FOR INSERT TO {role} WITH CHECK (true)",
    ]
