"""The manifest of a model that another engine serves: what it says of itself, marked as declared and not verified.

The digests of such a manifest name what was *said*. Two servers that say the same are one identity; one that is upgraded,
or serves another file under the same name, says something else and is another one. That its weights are what it says,
nobody here has seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from tiltyard.errors import ConfigurationError
from tiltyard.identity.canonical import digest_of, digest_of_json
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, Deployment, Weights
from tiltyard.identity.manifest import Engine as EngineOfManifest
from tiltyard.wire.worker import IdentityStatus, WorkerStatus
from tiltyard.worker.adapters.facts import EngineFacts, ServedModel

UNSAID_CONTEXT_TOKENS = 32_768
"""Taken for the context of a model whose server does not say."""
DECLARED = ("weights", "architecture", "tokenizer", "kv_precision", "adapters", "rope_scaling", "engine")
"""Members of the manifest that no such engine can prove."""
MAX_NAME_CHARACTERS = 64


def identity_name(model_id: str) -> str:
    """A name of ours for a model of theirs.

    >>> identity_name("meta-llama/Llama-3.1-8B-Instruct")
    'Llama-3.1-8B-Instruct'
    """
    last = model_id.rstrip("/").rsplit("/", 1)[-1]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).lstrip("._-")[:MAX_NAME_CHARACTERS]
    if not name:
        raise ConfigurationError(
            f"{model_id[:80]!r} gives no name for an identity; choose one with --as NAME"
        )
    return name


MOST_MODELS = 64
"""Of one server, each with a manifest, an event and a place in every list."""


def names_of(facts: EngineFacts, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Identity names and the model that each stands for; raises `ConfigurationError` for one that is not there.

    Without `names` every model of the server gets a name of its own; an empty model is the server's only one.
    """
    ids = [model.id for model in facts.models]
    if not ids:
        raise ConfigurationError("the server lists no model in GET /v1/models; load one and try again")
    if names is None and len(ids) > MOST_MODELS:
        raise ConfigurationError(
            f"the server lists {len(ids):,} models; at most {MOST_MODELS} are taken unasked. Name those that are wanted with --as NAME=MODEL"
        )
    if names is None:
        found: dict[str, str] = {}
        for model_id in ids:
            name = identity_name(model_id)
            if name in found:
                raise ConfigurationError(
                    f"{found[name]!r} and {model_id!r} would both be called {name}; name each with --as NAME=MODEL"
                )
            found[name] = model_id
        return found
    if any(not model_id for model_id in names.values()) and len(ids) > 1:
        raise ConfigurationError(
            f"--as {next(iter(names))} of which model? Write NAME=MODEL with one of {', '.join(ids)[:400]}"
        )
    names = {name: model_id or ids[0] for name, model_id in names.items()}
    for name, model_id in names.items():
        if model_id not in ids:
            raise ConfigurationError(
                f"--as {name}: the server has no model {model_id[:80]!r}; it lists {', '.join(ids)[:400]}"
            )
    return names


def behaviour_of(facts: EngineFacts, model: ServedModel, declaration: IdentityDeclaration) -> Behaviour:
    """What can change a token, as far as anybody says."""
    said = {name: value for name, value in model.said.items() if name != "created"}
    told = digest_of_json({"engine": facts.kind, "model": model.id, "said": said})
    shown = facts.chat_template
    return Behaviour(
        weights=Weights(
            digest=told, size_bytes=model.size_bytes, format="declared", stored_as=(), served_as="declared"
        ),
        architecture={"declared_model": model.id, **said},
        tokenizer=told,
        chat_template=None if shown is None else digest_of(shown.encode()),
        system_prompt=None
        if declaration.system_prompt is None
        else digest_of(declaration.system_prompt.encode()),
        adapters=() if model.adapter_of is None else (told,),
        default_sampling=declaration.sampling,
        engine=EngineOfManifest(name=facts.kind, numerics=0, version=facts.version or None),
        declared=DECLARED if shown is not None else (*DECLARED, "chat_template"),
    )


def identity_of(facts: EngineFacts, name: str, model: ServedModel, url: str) -> IdentityStatus:
    """One identity of a server, as `GET /worker` of ours would say it."""
    declaration = IdentityDeclaration(
        model=identity_name(model.id),
        description=f"{model.id} as {facts.kind} {facts.version} serves it; declared, not verified.",
    )
    behaviour = behaviour_of(facts, model, declaration)
    deployment = Deployment(
        behaviour=behaviour.digest,
        engine_build=f"{facts.kind} {facts.version}".strip(),
        isa="declared",
        threads=0,
        block_tokens=facts.load.block_tokens or 0,
        kv_blocks=facts.load.kv_blocks or 0,
        max_batch_tokens=0,
        hardware=f"declared, at {urlsplit(url).netloc}",
    )
    return IdentityStatus(
        name=name,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=declaration,
        max_context_tokens=model.max_context_tokens or UNSAID_CONTEXT_TOKENS,
    )


def status_of(facts: EngineFacts, worker: str, names: Mapping[str, str], url: str) -> WorkerStatus:
    """The server in the words of `GET /worker`; it is ready while it is healthy and serves what it was added for."""
    by_id = {model.id: model for model in facts.models}
    identities = tuple(
        identity_of(facts, name, by_id[model_id], url)
        for name, model_id in names.items()
        if model_id in by_id
    )
    load = facts.load
    return WorkerStatus(
        worker=worker,
        state="ready" if facts.healthy and identities else "loading",
        identities=identities,
        unfinished_tokens=0,
        running=load.running or 0,
        waiting=load.waiting or 0,
        kv_blocks_used=round((load.kv_use or 0.0) * (load.kv_blocks or 0)),
        kv_blocks_cached=0,
        kv_blocks_total=load.kv_blocks or 0,
        last_step_age_ms=None,
        kind=facts.kind,
        version=facts.version,
    )
