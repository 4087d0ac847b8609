"""A model in memory with the identities made from it, and the way from a request to a plan."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tiltyard import __version__
from tiltyard.engine.constraint import Grammar
from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.fairness import FairnessConfig
from tiltyard.engine.spill import SpillStore
from tiltyard.engine.verify import Observer
from tiltyard.errors import ConfigurationError, ContextTooLong, InvalidRequest, NotFound
from tiltyard.identity.canonical import Digest
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling, Deployment
from tiltyard.identity.store import IdentityStore
from tiltyard.kernels import BLOCK_TOKENS, NativeModel, choose_isa
from tiltyard.models.cache import Rehashing
from tiltyard.models.prompt import prompt_ids, refuse_too_long
from tiltyard.models.resolve import ResolvedIdentity, render_prompt, resolve
from tiltyard.models.stored import open_model, tokenizer_of
from tiltyard.models.template_process import TemplateProcesses
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.models.tool_grammar import form_with_calls
from tiltyard.wire.decoding import Decoding
from tiltyard.wire.structured import Structure
from tiltyard.wire.tools import ToolUse
from tiltyard.wire.worker import IdentityStatus
from tiltyard.worker.answer import DEFAULT_TERMS, AnswerPlan, CallRules, Terms
from tiltyard.worker.grammars import Grammars
from tiltyard.worker.load import ExpertsOnDisk, KeptPacking, add_adapters, load_native
from tiltyard.worker.packed_cache import PackedCache
from tiltyard.worker.speculate import DraftSource, SpeculationChoice, load_draft, speculation_of
from tiltyard.worker.spill_file import SpillFile

LEAST_KV_BYTES = 224 << 20
KV_SHARE = 8
"""One part in so many of the machine's memory is what a worker's cache of past tokens takes unasked."""
Progress = Callable[[int, int], None]
"""`(bytes packed, bytes in all)`."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a model is held; nothing here can change a token."""

    threads: int
    isa: str = "auto"
    kv_memory_bytes: int | None = None
    """`None`: room for one whole context, between `LEAST_KV_BYTES` and an eighth of the memory."""
    max_batch_tokens: int = 256
    max_sequences: int = 64
    packed_cache: PackedCache | None = None
    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    speculation: SpeculationChoice = "off"
    spill_bytes: int = 0
    """Budget of the second tier of the KV cache; 0 is off."""
    spill_dir: Path | None = None
    """Where its file lies; `None` for the system's directory of temporary files."""
    experts: ExpertsOnDisk | None = None
    """`None`: all experts of a mixture are in memory."""


@dataclass(frozen=True)
class ServedIdentity:
    """One identity over the loaded model."""

    name: str
    declaration: IdentityDeclaration
    resolved: ResolvedIdentity
    deployment: Deployment
    adapter: int = 0
    """Its LoRA adapter as the loaded model numbers it; 0: none."""

    @property
    def behaviour_digest(self) -> Digest:
        """What votes attach to."""
        return self.resolved.behaviour.digest

    def status(self, max_context_tokens: int) -> IdentityStatus:
        """The identity's part of `GET /worker`."""
        return IdentityStatus(
            name=self.name,
            behaviour=self.behaviour_digest,
            deployment=self.deployment.digest,
            behaviour_manifest=self.resolved.behaviour,
            deployment_manifest=self.deployment,
            declaration=self.declaration,
            max_context_tokens=max_context_tokens,
        )


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What a caller asks for, beside the prompt; `sampling` already holds the identity's defaults."""

    generation: str
    tenant: str
    sampling: DefaultSampling
    seed: int
    longest_is_default: bool = False
    """Whether nobody asked for `sampling.max_tokens`: then it gives way to what fits."""
    decoding: Decoding = field(default_factory=Decoding)
    grammar: Grammar | None = None
    """`decoding.structure`, compiled by the host's `grammars`."""
    n: int = 1
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_last: int | None = None
    """Of how many tokens at the prompt's end; `None`: of all."""
    echo: bool = False
    """Whether the answer begins with the prompt, with its scores if there are `top_logprobs`."""
    terms: Terms = DEFAULT_TERMS
    tools: ToolUse | None = None
    """`decoding.structure` is that of `ModelHost.form` then."""


class ModelHost:
    """One model file, loaded once, and the identities that share it."""

    def __init__(
        self,
        *,
        native: NativeModel,
        tokenizer: Tokenizer,
        identities: Mapping[str, ServedIdentity],
        config: EngineConfig,
        spill: SpillStore | None = None,
        expert_counters: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self.native = native
        self.tokenizer = tokenizer
        self.identities = identities
        self.config = config
        self.engine = Engine(native, config, spill)
        self.grammars = Grammars(tokenizer, config.vocab_size)
        self.templates = TemplateProcesses()
        self.expert_counters = expert_counters
        """Of a mixture: hits, misses and more; `None` where there are no experts."""

    @property
    def max_context_tokens(self) -> int:
        """Most tokens of prompt and answer together: what the model knows and the KV memory holds."""
        return min(self.config.max_context, self.config.kv_blocks * BLOCK_TOKENS + 1)

    def identity(self, name: str) -> ServedIdentity:
        """Find an identity by name; raises `NotFound`."""
        if (identity := self.identities.get(name)) is None:
            known = ", ".join(sorted(self.identities))
            raise NotFound(
                f"model {name!r} is not served here; known: {known}", param="model", code="model_not_found"
            )
        return identity

    def encode_chat(
        self,
        identity: ServedIdentity,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: ToolUse | None = None,
        truncated: bool = False,
    ) -> list[int]:
        """Messages and tools to prompt tokens, as the identity's template says.

        `ContextTooLong` before megabytes are encoded, unless the prompt will be `truncated`; `InvalidRequest`
        for tools that the model may call or not, where it was not made for tools.
        """
        if tools is not None and not tools.forced and identity.resolved.tool_format is None:
            raise InvalidRequest(
                f"{identity.name} was not made for tools: its chat template does not show them, or not in a way that "
                'is known here. Send tool_choice "required" or a function\'s name, or set the tool_format of the '
                "identity",
                param="tools",
                code="unsupported_parameter",
            )
        most = None if truncated else self.max_context_tokens - 1
        return render_prompt(
            identity.resolved,
            self.tokenizer,
            messages,
            tools=tools,
            most_tokens=most,
            renderer=self.templates,
        )

    def form(
        self, identity: ServedIdentity, tools: ToolUse | None, answer: Structure | None
    ) -> Structure | None:
        """What an answer is held to: the form that was demanded, and that of calls; raises `InvalidRequest`."""
        if tools is None:
            return answer
        resolved = identity.resolved
        return form_with_calls(
            resolved.forced_tool_format,
            tools,
            self.tokenizer.control_tokens,
            single=not resolved.may_call_at_once(tools),
            answer=answer,
        )

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word in tokens, as it stands at the beginning of a text and after a space (as vLLM does).

        It does not come in these tokens; spelled by others, or as a part of a longer word, it may.
        """
        spelled = [text for word in words for text in (word, " " + word.lstrip())]
        ids = [tuple(self.tokenizer.encode(text, special=False)) for text in spelled]
        return tuple(dict.fromkeys(word for word in ids if word))

    def encode_text(self, prompt: str | Sequence[int], *, truncated: bool = False) -> list[int]:
        """A plain prompt to tokens; token ids stay as they are. `ContextTooLong` as for `encode_chat`."""
        if not isinstance(prompt, str):
            return list(prompt)
        if not truncated:
            refuse_too_long(self.tokenizer, prompt, self.max_context_tokens - 1, "prompt")
        return prompt_ids(self.tokenizer, prompt, special=True)

    def encode_plain(self, text: str | Sequence[int]) -> list[int]:
        """A text to embed: control tokens that it spells are text; BOS and EOS as the model wants them."""
        if not isinstance(text, str):
            return list(text)
        refuse_too_long(self.tokenizer, text, self.max_context_tokens - 1, "input")
        return prompt_ids(self.tokenizer, text, special=False)

    def plan(self, identity: ServedIdentity, prompt: Sequence[int], request: AnswerRequest) -> AnswerPlan:
        """Fix everything that decides the answer; `ContextTooLong` or `InvalidRequest` if it cannot run.

        Without `max_tokens` an answer may fill the context; a default of it gives way to what fits.
        """
        decoding = request.decoding
        if decoding.truncate_prompt_tokens is not None:
            prompt = prompt[-decoding.truncate_prompt_tokens :]
        room = self.max_context_tokens - len(prompt)
        if room < 1:
            raise ContextTooLong(
                f"prompt has {len(prompt):,} tokens; {identity.name} accepts "
                f"{self.max_context_tokens - 1:,}. Shorten it.",
                param="prompt",
            )
        longest = request.sampling.max_tokens or room
        if request.longest_is_default:
            longest = min(longest, room)
        sampling = request.sampling.model_copy(update={"max_tokens": longest})
        if decoding.structure is not None and not self.tokenizer.stop_ids:
            raise InvalidRequest(
                f"{identity.name} names no token that ends an answer, and a grammar needs one",
                param=decoding.structure.param,
            )
        own_stop_ids = frozenset() if decoding.ignore_eos else self.tokenizer.stop_ids
        echoed = request.top_logprobs if request.echo else None
        wanted = [count for count in (request.prompt_logprobs, echoed) if count is not None]
        plan = AnswerPlan(
            generation=request.generation,
            identity=identity.name,
            behaviour=identity.behaviour_digest,
            deployment=identity.deployment.digest,
            tenant=request.tenant,
            prompt=tuple(prompt),
            sampling=sampling,
            seed=request.seed,
            stop_ids=own_stop_ids | frozenset(decoding.stop_token_ids),
            decoding=decoding,
            bad_words=self.bad_words(decoding.bad_words),
            grammar=request.grammar,
            n=request.n,
            top_logprobs=request.top_logprobs,
            terms=request.terms,
            prompt_logprobs=max(wanted, default=None),
            shown_prompt_logprobs=request.prompt_logprobs,
            prompt_logprobs_from=max(0, len(prompt) - (request.prompt_logprobs_last or len(prompt))),
            echo=request.echo,
            adapter=identity.adapter,
            calls=None
            if request.tools is None
            else _call_rules(identity, request.tools, held=decoding.structure is not None),
        )
        self.engine.check(plan.engine_requests()[0])
        return plan


def load_host(
    model_path: Path,
    identities: Mapping[str, IdentityDeclaration],
    settings: HostSettings,
    *,
    base_dir: Path | None = None,
    store: IdentityStore | None = None,
    progress: Progress | None = None,
    observe: Observer | None = None,
) -> ModelHost:
    """Load a model file and resolve the identities; manifests and artifacts go into `store` if given.

    All identities must agree in quantization, KV precision and RoPE scaling, since they share the weights in
    memory.
    Raises `ConfigurationError` if they do not, `ModelRejected` if the file is not fit, `DigestMismatch`
    if its bytes were changed behind its size and time.
    """
    first = _one_way_of_holding(identities)
    cache = settings.packed_cache
    with open_model(model_path) as gguf, ThreadPoolExecutor(2) as aside:
        # Size and time prove nothing (registered means frozen), and hashing needs no Python: it goes on beside the rest.
        weights = Rehashing(model_path, aside)
        # The vocabulary is Python's work and takes longest; packing needs no Python and goes on meanwhile.
        tokenizing = aside.submit(tokenizer_of, gguf)
        resolved = {
            name: resolve(declaration, gguf, weights.digest, base_dir or model_path.parent)
            for name, declaration in identities.items()
        }
        architecture = next(iter(resolved.values())).architecture

        def heard(done: int, total: int) -> None:
            if tokenizing.done():
                tokenizing.result()  # a vocabulary that is refused ends the load here, not after gigabytes
            if progress is not None:
                progress(done, total)

        native = load_native(
            gguf,
            architecture,
            quantization=first.quantization,
            threads=settings.threads,
            isa=choose_isa(settings.isa),
            progress=heard,
            experts=settings.experts,
            packing=None if cache is None else KeptPacking(cache, weights.digest, weights.verify),
        )
        tokenizer = tokenizing.result()
        draft = (
            load_draft(
                settings.speculation,
                gguf,
                threads=settings.threads,
                isa=settings.isa,
                precision=first.kv_precision,
            )
            if isinstance(settings.speculation, DraftSource)
            else None
        )
    adapters = add_adapters(native, resolved.values())
    native.allocate_kv(1, first.kv_precision)  # to learn the size of a block
    bytes_a_block = native.kv_bytes_per_block + (draft.native.kv_bytes_per_block if draft else 0)
    kv_memory_bytes = settings.kv_memory_bytes
    if kv_memory_bytes is None:
        kv_memory_bytes = kv_memory_of(-(-architecture.max_positions // BLOCK_TOKENS) * bytes_a_block)
    blocks = kv_memory_bytes // bytes_a_block
    if blocks < 1:
        raise ConfigurationError(
            f"kv_memory_mb leaves {kv_memory_bytes:,} bytes; a block of {BLOCK_TOKENS} tokens takes "
            f"{bytes_a_block:,}. Raise kv_memory_mb.",
            param="kv_memory_mb",
        )
    native.allocate_kv(blocks, first.kv_precision)
    config = EngineConfig(
        kv_blocks=blocks,
        max_batch_tokens=settings.max_batch_tokens,
        max_sequences=min(settings.max_sequences, settings.max_batch_tokens),
        vocab_size=architecture.vocab_size,
        max_context=architecture.max_positions,
        observe=observe,
        fairness=settings.fairness,
        speculation=speculation_of(
            settings.speculation,
            draft,
            native,
            blocks=blocks,
            vocab_size=architecture.vocab_size,
            precision=first.kv_precision,
        ),
        width=architecture.dim,
    )
    speculation = draft.name if draft else None if settings.speculation == "off" else "prompt-lookup"
    served = {
        name: ServedIdentity(
            name,
            identities[name],
            one,
            _deployment(one.behaviour.digest, native, config, speculation),
            0 if one.adapter is None else adapters[one.adapter.digest],
        )
        for name, one in resolved.items()
    }
    weights.verify()  # before anything is answered, or written down, under the name
    if store is not None:
        for identity in served.values():
            identity.resolved.put_artifacts(store)
            store.put_manifest(identity.resolved.behaviour)
            store.put_manifest(identity.deployment)
    spill = None
    if settings.spill_bytes:
        directory = settings.spill_dir or Path(tempfile.gettempdir())
        spill = SpillFile(directory, block_bytes=native.kv_bytes_per_block, budget_bytes=settings.spill_bytes)
    return ModelHost(
        native=native,
        tokenizer=tokenizer,
        identities=served,
        config=config,
        spill=spill,
        expert_counters=(lambda: native.expert_counters) if architecture.n_experts else None,
    )


def kv_memory_of(context_bytes: int) -> int:
    """Memory for past tokens where nobody says how much: a whole context fits, if it is not too much for the machine.

    >>> kv_memory_of(1 << 20) >> 20
    256
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(LEAST_KV_BYTES, min(context_bytes, memory // KV_SHARE))


def hardware_name() -> str:
    """Architecture and CPU model, for the deployment manifest."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{platform.machine()} {model}".strip()


def _call_rules(identity: ServedIdentity, tools: ToolUse, *, held: bool) -> CallRules:
    resolved = identity.resolved
    return CallRules(
        resolved.forced_tool_format,
        {tool.function.name: tool.parameters for tool in tools.callable},
        held=held,
        single=not resolved.may_call_at_once(tools),
    )


def _one_way_of_holding(identities: Mapping[str, IdentityDeclaration]) -> IdentityDeclaration:
    if not identities:
        raise ConfigurationError("a worker needs at least one identity", param="identities")
    ways = {(d.quantization, d.kv_precision, d.rope_scaling) for d in identities.values()}
    if len(ways) > 1:
        raise ConfigurationError(
            f"identities {', '.join(sorted(identities))} differ in quantization, kv_precision or rope_scaling "
            "and cannot share one worker; start a worker for each",
            param="identities",
        )
    return next(iter(identities.values()))


def _deployment(
    behaviour: Digest, native: NativeModel, config: EngineConfig, speculation: str | None
) -> Deployment:
    return Deployment(
        behaviour=behaviour,
        engine_build=f"tiltyard {__version__}",
        isa=native.isa,
        threads=native.threads,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=config.kv_blocks,
        max_batch_tokens=config.max_batch_tokens,
        speculation=speculation,
        hardware=hardware_name(),
    )
