"""Who may review votes over HTTP: whoever shows an API key with the scope `admin`."""

from __future__ import annotations

from collections.abc import Mapping

from tiltyard.events.log import EventLog
from tiltyard.gateway.errors import InvalidApiKey, MissingScope
from tiltyard.gateway.keyring import KeyRing
from tiltyard.web.review import Authorize


def reviewers(log: EventLog) -> Authorize:
    """Make the check for the keys of a log; each check asks whether a key was made or revoked since."""
    keys = KeyRing(log)

    async def authorize(headers: Mapping[str, str]) -> str:
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        secret = shown.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not secret:
            raise InvalidApiKey(
                "reviewing votes needs a key with the scope admin, as `Authorization: Bearer <key>`; make one with "
                "`tiltyard keys create --tenant NAME --scope admin`"
            )
        row = await keys.find(secret)
        if row is None or not keys.is_alive(row):
            raise InvalidApiKey("the API key is not one of this server's, or has ended; ask for a new one")
        if "admin" not in row.scopes:
            raise MissingScope(
                f"reviewing votes needs the scope admin, which this key lacks (it has {', '.join(row.scopes)}); "
                "use another key"
            )
        return row.key

    return authorize
