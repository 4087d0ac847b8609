"""What a server says of itself before load is put on it."""

from __future__ import annotations

import httpx2
import orjson

from tiltyard.client.failures import error_from_response, error_from_transport
from tiltyard.errors import NotFound, UpstreamFailed
from tiltyard.ops.load.place import is_here
from tiltyard.ops.load.record import ServerFacts

PATIENCE_S = 30.0


async def facts_of(url: str, model: str | None, api_key: str | None) -> ServerFacts:
    """Ask for its models; raises what the client raises, and `NotFound` where it does not serve `model`.

    `url` ends with `/v1`. `hardware` is `here` for a server of this machine.
    """
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    async with httpx2.AsyncClient(timeout=PATIENCE_S, headers=headers, trust_env=False) as http:
        try:
            response = await http.get(url + "/models")
        except httpx2.HTTPError as error:
            raise error_from_transport(error, url) from error
        if response.status_code != 200:
            raise error_from_response(response.status_code, response.headers, response.content)
        try:
            models = {entry["id"]: entry for entry in orjson.loads(response.content)["data"]}
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise UpstreamFailed(f"{url}/models did not answer with a list of models") from error
        if not models:
            raise NotFound(f"{url} lists no model; is it still loading?", param="model")
        name = model or next(iter(models))
        if name not in models:
            raise NotFound(f"{url} has no model {name!r}; it lists {', '.join(models)}", param="model")
        entry = models[name]
        ours = entry.get("tiltyard") or {}
        return ServerFacts(
            url=url,
            model=name,
            owned_by=str(entry.get("owned_by") or ""),
            quantization=ours.get("quantization"),
            hardware="here" if is_here(url) else None,
            version=response.headers.get("server"),
        )
