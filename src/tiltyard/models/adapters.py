"""LoRA adapters in PEFT's form: a directory with `adapter_config.json` and `adapter_model.safetensors`.

y = W x + scale * B (A x); Hu et al. 2021, https://arxiv.org/abs/2106.09685, equation 3. The scale is alpha / r, or
alpha / sqrt(r) with `use_rslora` (https://arxiv.org/abs/2312.03732). What we do not honour is refused by name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import ModelRejected
from tiltyard.identity.canonical import Digest, Json, canonical_json, digest_of
from tiltyard.identity.store import IdentityStore
from tiltyard.models.directory_files import ADAPTER_CONFIG
from tiltyard.models.safetensors import read_header

WEIGHTS = "adapter_model.safetensors"
MAX_RANK = 512
MAX_ALPHA = 1e6
"""Real ones are some hundred; what is added must stay within the range of a float32."""
DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
TARGETS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Transformers' names of the matrices that can be adapted, and GGUF's."""
TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.(0|[1-9][0-9]{0,3})\.([a-z_]+\.[a-z_]+)\.lora_([AB])\.weight"
)

WITHOUT_EFFECT = frozenset(
    (
        # What a config says about training, or about what the tensors show anyway.
        *("auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "lora_dropout"),
        *("layers_pattern", "layers_to_transform", "loftq_config", "megatron_config", "megatron_core"),
        *("ensure_weight_tying", "peft_version", "qalora_group_size", "revision", "runtime_config"),
        *("target_modules", "task_type"),
    )
)
INITIALIZATIONS = (True, False, "gaussian", "orthogonal")
"""`init_lora_weights` that leave the base weights alone; PiSSA, OLoRA and others change them."""


class LowRank(NamedTuple):
    """What an adapter adds to one matrix (rows, columns): scale * up @ down."""

    down: NDArray[np.float32]
    """(rank, columns); PEFT's lora_A."""
    up: NDArray[np.float32]
    """(rows, rank); lora_B."""


class AdaptedModel(Protocol):
    """What an adapter must know of the model that it is for."""

    @property
    def n_heads(self) -> int:
        """Query heads."""

    @property
    def n_kv_heads(self) -> int:
        """Key-value heads."""

    @property
    def rope_style(self) -> str:
        """`adjacent` where a file's rows of queries and keys are not in Transformers' order."""

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the model's tensors under GGUF names."""


@dataclass(frozen=True)
class Adapter:
    """One adapter: its two files, and what the config means.

    >>> adapter = Adapter.read(Path("adapters/pirate"))  # doctest: +SKIP
    >>> adapter.digest, adapter.scale
    ('sha256:…', 2.0)
    """

    name: str
    """For errors: the directory."""
    rank: int
    alpha: float
    rslora: bool
    weights: bytes
    """`adapter_model.safetensors`."""

    @classmethod
    def read(cls, directory: Path) -> Adapter:
        """Read a directory; raises `ModelRejected` naming the file and the key that cannot be honoured."""
        name = str(directory)
        try:
            config = json.loads((directory / ADAPTER_CONFIG).read_bytes())
            weights = (directory / WEIGHTS).read_bytes()
        except OSError as error:
            raise ModelRejected(
                f"adapter {name}: {error.filename} cannot be read: {error.strerror}; an adapter is a directory with "
                f"{ADAPTER_CONFIG} and {WEIGHTS}, as PEFT writes it"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ModelRejected(f"adapter {name}: {ADAPTER_CONFIG} is not JSON: {error}") from None
        return _checked(cls(name, *_settings(name, config), weights))

    @classmethod
    def stored(cls, store: IdentityStore, digest: Digest) -> Adapter:
        """Make one again from what a store keeps of it; raises `NotFound`."""
        value = json.loads(store.get(digest))
        weights = store.get(value["weights"])
        return _checked(cls(digest, value["rank"], value["alpha"], value["rslora"], weights))

    def write(self, directory: Path) -> None:
        """Write the files that `read` takes for the same adapter."""
        config = {
            "peft_type": "LORA",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.rslora,
        }
        (directory / ADAPTER_CONFIG).write_text(json.dumps(config))
        (directory / WEIGHTS).write_bytes(self.weights)

    @property
    def artifact(self) -> bytes:
        """What the digest stands for: everything that can change a token."""
        value: Json = {
            "kind": "lora",
            "rank": self.rank,
            "alpha": self.alpha,
            "rslora": self.rslora,
            "weights": digest_of(self.weights),
        }
        return canonical_json(value)

    @property
    def digest(self) -> Digest:
        """The adapter's name in a behaviour manifest."""
        return digest_of(self.artifact)

    @property
    def scale(self) -> float:
        """What B (A x) is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def matrices(self, model: AdaptedModel) -> dict[str, LowRank]:
        """Low-rank pairs by the GGUF name of the matrix that they adapt, rows in the order of the model's file.

        Raises `ModelRejected` naming the tensor that the model has no place for.
        """
        parts: dict[str, dict[str, NDArray[np.float32]]] = {}
        shapes = model.tensor_shapes()
        for tensor, values in _tensors(self.name, self.weights).items():
            found = TENSOR.fullmatch(tensor)
            if found is None or (target := TARGETS.get(found[2])) is None:
                raise ModelRejected(
                    f"adapter {self.name}: tensor {tensor!r} is not supported; supported are lora_A and lora_B of "
                    f"{', '.join(TARGETS)}"
                )
            name = f"blk.{int(found[1])}.{target}.weight"
            if name not in shapes:
                raise ModelRejected(
                    f"adapter {self.name}: tensor {tensor!r} is for a matrix that this model does not have; "
                    "is it an adapter for another model?"
                )
            parts.setdefault(name, {})[found[3]] = values
        if not parts:
            raise ModelRejected(f"adapter {self.name}: {WEIGHTS} has no tensors")
        matrices = {}
        for name, pair in parts.items():
            rows, columns = shapes[name]
            wanted = {"A": (self.rank, columns), "B": (rows, self.rank)}
            for letter, shape in wanted.items():
                got = pair[letter].shape if letter in pair else None
                if got != shape:
                    raise ModelRejected(
                        f"adapter {self.name}: lora_{letter} for {name} "
                        + ("is missing" if got is None else f"has shape {got}; expected {shape}")
                    )
            up = pair["B"]
            if model.rope_style == "adjacent" and ".attn_q." in name:
                up = _pairs_adjacent(up, model.n_heads)
            elif model.rope_style == "adjacent" and ".attn_k." in name:
                up = _pairs_adjacent(up, model.n_kv_heads)
            matrices[name] = LowRank(np.ascontiguousarray(pair["A"]), np.ascontiguousarray(up))
        return matrices


def _pairs_adjacent(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of each head from Transformers' order (i and i + half rotate together) to (2i, 2i + 1), as files have it."""
    count, rank = rows.shape
    return rows.reshape(heads, 2, count // heads // 2, rank).swapaxes(1, 2).reshape(count, rank)


def _settings(name: str, config: object) -> tuple[int, float, bool]:
    """Rank, alpha and rslora of a config in which nothing stands that we would not honour."""
    if not isinstance(config, dict):
        raise ModelRejected(f"adapter {name}: {ADAPTER_CONFIG} is not a JSON object")
    values = dict(config)

    def refuse(key: str, value: object, why: str) -> ModelRejected:
        return ModelRejected(f"adapter {name}: {ADAPTER_CONFIG}: {key} is {value!r:.100}; {why}")

    if (kind := values.pop("peft_type", None)) != "LORA":
        raise refuse("peft_type", kind, "only 'LORA' is supported")
    rank, alpha = values.pop("r", None), values.pop("lora_alpha", None)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        raise refuse("r", rank, f"it must be a whole number from 1 to {MAX_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not -MAX_ALPHA <= alpha <= MAX_ALPHA:
        raise refuse("lora_alpha", alpha, f"it must be a number from {-MAX_ALPHA:,.0f} to {MAX_ALPHA:,.0f}")
    if (bias := values.pop("bias", "none")) != "none":
        raise refuse("bias", bias, "adapters that train biases are not supported")
    if (start := values.pop("init_lora_weights", True)) not in INITIALIZATIONS:
        raise refuse("init_lora_weights", start, "adapters that change the base weights are not supported")
    rslora = values.pop("use_rslora", False)
    if not isinstance(rslora, bool):
        raise refuse("use_rslora", rslora, "it must be true or false")
    for key, value in values.items():
        if value and key not in WITHOUT_EFFECT:
            raise refuse(ascii(key)[1:-1][:100], value, "this is not supported; leave it out when you train")
    return rank, float(alpha), rslora


def _checked(adapter: Adapter) -> Adapter:
    """The same, its weights all read and finite."""
    for tensor, values in _tensors(adapter.name, adapter.weights).items():
        if not np.isfinite(values).all():
            raise ModelRejected(f"adapter {adapter.name}: tensor {tensor!r} has infinite or NaN values")
    return adapter


def _tensors(name: str, data: bytes) -> dict[str, NDArray[np.float32]]:
    """Two-dimensional tensors of a safetensors file, as float32: https://github.com/huggingface/safetensors#format."""

    tensors: dict[str, NDArray[np.float32]] = {}
    for tensor, info in read_header(f"adapter {name}: {WEIGHTS}", data).items():
        if len(info.shape) != 2 or not all(info.shape):
            raise ModelRejected(
                f"adapter {name}: tensor {tensor!r} has shape {info.shape}; it must be a matrix"
            )
        if info.dtype not in DTYPES:
            raise ModelRejected(
                f"adapter {name}: tensor {tensor!r} is stored as {info.dtype}; supported: {', '.join(DTYPES)}"
            )
        raw = np.frombuffer(data, DTYPES[info.dtype], math.prod(info.shape), info.offset)
        if info.dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        tensors[tensor] = raw.astype(np.float32).reshape(info.shape)
    return tensors
