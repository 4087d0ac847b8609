"""A model as a Hugging Face directory: `config.json` and safetensors files, read as if it were a GGUF file.

Names, metadata and layouts are translated to GGUF's, so everything behind this file knows one kind of model::

    config.json                     hidden_size, rope_theta, ...  ->  llama.embedding_length, llama.rope.freq_base, ...
    model.safetensors(.index.json)  model.layers.0.self_attn.q_proj.weight  ->  blk.0.attn_q.weight

Llama's rotation turns neighbours (2i, 2i + 1) in GGUF and halves (i, i + n / 2) here: rows of its queries and keys
change places. Gemma's norms are stored as gain - 1. Nothing is rounded.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import ModelRejected
from tiltyard.models.gguf import MetadataValue, TensorInfo
from tiltyard.models.safetensors import SafetensorsFile, SafetensorsInfo

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 64 << 20
SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
STORED = {"F32": (0, "F32"), "F16": (1, "F16"), "BF16": (30, "BF16")}
"""safetensors dtype -> ggml type and its name."""


class Kind(NamedTuple):
    """What a `model_type` means here."""

    architecture: str
    activation: str
    turned: bool = False
    """Whether rows of queries and keys change places."""
    gain_less_one: bool = False
    post_norms: bool = False


KINDS = {
    "llama": Kind("llama", "silu", turned=True),
    "mistral": Kind("llama", "silu", turned=True),
    "qwen2": Kind("qwen2", "silu"),
    "qwen3": Kind("qwen3", "silu"),
    "gemma3_text": Kind("gemma3", "gelu_pytorch_tanh", gain_less_one=True, post_norms=True),
}
SIZES = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WITH_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.([a-z_.]+)\.(weight|bias)")
BUFFER = re.compile(r".*\.rotary_emb\.inv_freq")
"""Old conversions keep it; it follows from the configuration."""
ROPE_FACTORS = "rope_freqs.weight"

Change = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


class ModelDirectory:
    """An open directory, with the face of a `GgufFile`; made by `ModelDirectory.open`."""

    def __init__(
        self, path: Path, files: Mapping[str, SafetensorsFile], config: Mapping[str, object]
    ) -> None:
        self.path = path
        self.size_bytes = sum(file.size_bytes for file in files.values())
        self._files = files
        self._places: dict[str, tuple[SafetensorsFile, str]] = {}
        self._changes: dict[str, Change] = {}
        self._made: dict[str, NDArray[np.uint8]] = {}
        translation = _Config(path / CONFIG, config)
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(translation.metadata())
        self._kind = translation.kind
        tensors: dict[str, TensorInfo] = {}
        for file in files.values():
            for name, info in file.tensors.items():
                if BUFFER.fullmatch(name) or (name == "lm_head.weight" and translation.tied):
                    continue
                self._add(tensors, file, name, info)
        if (factors := translation.rope_factors()) is not None:
            self._made[ROPE_FACTORS] = factors.view(np.uint8)
            tensors[ROPE_FACTORS] = TensorInfo(ROPE_FACTORS, 0, "F32", factors.shape, 0, factors.nbytes)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

    @classmethod
    def open(cls, path: Path) -> ModelDirectory:
        """Map and check a directory's files; raises `ModelRejected` naming the file that is not sound."""
        files: dict[str, SafetensorsFile] = {}
        try:
            config = read_json(path / CONFIG)
            for name in weight_files(path):
                files[name] = SafetensorsFile.open(path / name)
            _check_index(path, files)
            return cls(path, files, config)
        except ModelRejected:
            for file in files.values():
                file.close()
            raise

    def tensor_data(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's raw bytes in GGUF's layout: a view into the file, or a changed copy."""
        if name in self._made:
            return self._made[name]
        file, stored_name = self._places[name]
        data = file.tensor_data(stored_name)
        change = self._changes.get(name)
        return data if change is None else change(data)

    def close(self) -> None:
        """Unmap; while a view from `tensor_data` lives, its mapping lives with it."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> ModelDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(
        self, tensors: dict[str, TensorInfo], file: SafetensorsFile, stored_name: str, info: SafetensorsInfo
    ) -> None:
        name = self._translated(stored_name)
        if name in tensors:
            raise ModelRejected(f"{self.path}: {stored_name!r} is there twice, in two of its files")
        if info.dtype not in STORED:
            raise ModelRejected(
                f"{file.path}: tensor {stored_name!r} is stored as {info.dtype}; supported: {', '.join(STORED)}"
            )
        ggml_type, type_name = STORED[info.dtype]
        size = info.size_bytes
        if name.endswith("norm.weight") and self._kind.gain_less_one:
            # GGUF holds the gain itself. bfloat16 could not: 1 + w needs more bits than w.
            ggml_type, type_name, size = 0, "F32", math.prod(info.shape) * 4
            self._changes[name] = _one_more(info.dtype)
        elif self._kind.turned and name.endswith((".attn_q.weight", ".attn_k.weight")):
            self._changes[name] = self._neighbours(name, info)
        tensors[name] = TensorInfo(name, ggml_type, type_name, info.shape, info.offset, size)
        self._places[name] = (file, stored_name)

    def _translated(self, name: str) -> str:
        """The GGUF name; an unknown one stays, and whoever checks the architecture refuses it by this name."""
        if name in OUTER:
            return OUTER[name]
        if match := LAYER.fullmatch(name):
            inner = INNER | WITH_POST_NORMS if self._kind.post_norms else INNER
            if match[2] in inner:
                return f"blk.{match[1]}.{inner[match[2]]}.{match[3]}"
        return name

    def _neighbours(self, name: str, info: SafetensorsInfo) -> Change:
        """Rows (head, half, i) become rows (head, i, half): what was i and i + n / 2 stands side by side."""
        key = "attention.head_count" + ("_kv" if ".attn_k." in name else "")
        heads = self.metadata.get(f"{self._kind.architecture}.{key}")
        if not isinstance(heads, int) or len(info.shape) != 2 or info.shape[0] % (2 * heads):
            raise ModelRejected(
                f"{self.path}: tensor {name!r} has shape {info.shape}, which is not rows for {heads} heads"
            )
        rows, row_bytes = info.shape[0], info.size_bytes // max(1, info.shape[0])

        def change(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
            parts = data.reshape(heads, 2, rows // heads // 2, row_bytes)
            return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(-1)

        return change


def _one_more(dtype: str) -> Change:
    def change(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if dtype == "BF16":
            values = (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        else:
            values = data.view(np.float32 if dtype == "F32" else np.float16).astype(np.float32)
        return (values + np.float32(1)).view(np.uint8)

    return change


class _Config:
    """`config.json`, translated; every refusal names the file, the key and the value."""

    def __init__(self, path: Path, config: Mapping[str, object]) -> None:
        self.path = path
        self.config = config
        kind = config.get("model_type")
        if not isinstance(kind, str) or kind not in KINDS:
            raise ModelRejected(
                f"{path}: model_type is {kind!r}; supported as a directory: {', '.join(KINDS)}"
            )
        self.kind = KINDS[kind]
        tied = config.get("tie_word_embeddings", kind == "gemma3_text")
        if not isinstance(tied, bool):
            self.refuse("tie_word_embeddings", "true or false")
        self.tied = tied
        self.rope = self._rope()

    def refuse(self, key: str, expected: str) -> None:
        raise ModelRejected(f"{self.path}: {key!r} is {self.config.get(key)!r}; expected {expected}")

    def metadata(self) -> dict[str, MetadataValue]:
        """What a converted GGUF file would say."""
        activation = self.config.get("hidden_activation", self.config.get("hidden_act", self.kind.activation))
        if activation != self.kind.activation:
            raise ModelRejected(
                f"{self.path}: the activation is {activation!r}; {self.kind.architecture} is supported with "
                f"{self.kind.activation!r}"
            )
        values: dict[str, MetadataValue] = {}
        for key, name in SIZES.items():
            if (size := self._whole(key)) is not None:
                values[name] = size
        if (head_dim := self._whole("head_dim")) is not None:
            values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
        if (epsilon := self._number("rms_norm_eps")) is not None:
            values["attention.layer_norm_rms_epsilon"] = epsilon
        values |= self._rope_metadata()
        values |= self._window()
        if self.kind.architecture == "gemma3":
            values |= self._gemma3()
        prefix = self.kind.architecture + "."
        return {"general.architecture": self.kind.architecture} | {
            prefix + key: value for key, value in values.items()
        }

    def rope_factors(self) -> NDArray[np.float32] | None:
        """Llama 3's divisors of the frequencies, which GGUF keeps as a tensor.

        Long waves are stretched by `factor`, short ones stay, and what lies between changes over smoothly:
        https://github.com/meta-llama/llama-models, `apply_scaling`.
        """
        if self.rope.get("rope_type") != "llama3":
            return None
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        numbers = [self._rope_number(key) for key in keys]
        factor, low, high, context = numbers
        heads, width = self._whole("num_attention_heads"), self._whole("hidden_size")
        head_dim = self._whole("head_dim") or (width or 0) // (heads or 1)
        if min(numbers) <= 0 or high <= low or not 2 <= head_dim <= 1024:
            raise ModelRejected(
                f"{self.path}: the llama3 rope scaling is {self.rope!r}, which is no such scaling"
            )
        base = self._rope_number("rope_theta", 10_000.0)
        waves = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
        smooth = (context / waves - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors = np.where(waves < context / high, 1.0, np.where(waves > context / low, factor, between))
        return factors.astype(np.float32)

    def _rope(self) -> dict[str, object]:
        """`rope_parameters` (Transformers 5), or `rope_scaling` and `rope_theta`; of Gemma 3 the full layers'."""
        parameters = self.config.get("rope_parameters")
        if parameters is None:
            parameters = dict(self._table("rope_scaling"))
            if "rope_theta" in self.config:
                parameters["rope_theta"] = self.config["rope_theta"]
        else:
            parameters = dict(self._table("rope_parameters"))
        full = parameters.get("full_attention")
        if isinstance(full, dict):
            parameters = full
        parameters.setdefault("rope_type", parameters.get("type", "default"))
        return parameters

    def _rope_metadata(self) -> dict[str, MetadataValue]:
        values: dict[str, MetadataValue] = {}
        if "rope_theta" in self.rope:
            values["rope.freq_base"] = self._rope_number("rope_theta")
        kind = self.rope["rope_type"]
        if kind in ("linear", "yarn"):
            values |= {"rope.scaling.type": str(kind), "rope.scaling.factor": self._rope_number("factor")}
        if kind == "yarn":
            if "original_max_position_embeddings" in self.rope:
                original = int(self._rope_number("original_max_position_embeddings"))
                values["rope.scaling.original_context_length"] = original
            for name in ("beta_fast", "beta_slow"):
                if name in self.rope:
                    values[f"rope.scaling.yarn_{name}"] = self._rope_number(name)
        if kind not in ("default", "linear", "yarn", "llama3"):
            raise ModelRejected(
                f"{self.path}: rope scaling {kind!r} is not supported; supported: linear, yarn, llama3"
            )
        fraction = self.rope.get("partial_rotary_factor", self.config.get("partial_rotary_factor", 1.0))
        if fraction != 1.0:
            raise ModelRejected(f"{self.path}: 'partial_rotary_factor' is {fraction!r}; only 1 is supported")
        return values

    def _window(self) -> dict[str, MetadataValue]:
        if self.config.get("use_sliding_window") is False or self.config.get("sliding_window") is None:
            return {}
        window = self._whole("sliding_window")
        return {} if window is None else {"attention.sliding_window": window}

    def _gemma3(self) -> dict[str, MetadataValue]:
        values: dict[str, MetadataValue] = {}
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if (cap := self._number(key)) is not None:
                values[key] = cap
        if (scalar := self._number("query_pre_attn_scalar")) is not None and scalar > 0:
            values["attention.scale"] = _single(scalar**-0.5)
        local = (
            self._table("rope_parameters").get("sliding_attention")
            if self.config.get("rope_parameters")
            else None
        )
        base = local.get("rope_theta") if isinstance(local, dict) else self.config.get("rope_local_base_freq")
        if isinstance(base, (int, float)) and not isinstance(base, bool):
            values["rope.freq_base_swa"] = _single(base)
        layers = self.config.get("layer_types")
        if isinstance(layers, list):
            values["attention.sliding_window_pattern"] = tuple(kind == "sliding_attention" for kind in layers)
        elif (period := self._whole("sliding_window_pattern")) is not None:
            values["attention.sliding_window_pattern"] = period
        return values

    # Typed access; ranges are the architecture's affair.

    def _whole(self, key: str) -> int | None:
        value = self.config.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            self.refuse(key, "a whole number")
        return value if isinstance(value, int) else None

    def _number(self, key: str) -> float | None:
        value = self.config.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, "a number")
            return None
        return _single(value)

    def _rope_number(self, key: str, default: float | None = None) -> float:
        value = self.rope.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelRejected(f"{self.path}: {key!r} of the rope scaling is {value!r}; expected a number")
        return _single(value)

    def _table(self, key: str) -> Mapping[str, object]:
        value = self.config.get(key) or {}
        if not isinstance(value, dict):
            self.refuse(key, "an object")
            return {}
        return value


def _single(value: float) -> float:
    """As a GGUF file would hold it: single precision; what does not fit becomes infinite and is refused later."""
    with np.errstate(over="ignore"):
        try:
            return float(np.float32(value))
        except OverflowError:
            return math.inf


def weight_files(path: Path) -> tuple[str, ...]:
    """The names of a directory's safetensors files, in order; raises `ModelRejected`."""
    index = path / INDEX
    if not index.exists():
        if not (path / SINGLE).exists():
            raise ModelRejected(
                f"{path} holds neither {SINGLE} nor {INDEX}; a model directory has one of them"
            )
        return (SINGLE,)
    return tuple(sorted(set(_weight_map(index).values())))


def _check_index(path: Path, files: Mapping[str, SafetensorsFile]) -> None:
    """What the index promises must be in the files that it names, and nothing else."""
    index = path / INDEX
    if not index.exists():
        return
    promised = _weight_map(index)
    for name, file in promised.items():
        if name not in files[file].tensors:
            raise ModelRejected(f"{index}: tensor {name[:100]!r} is not in {file}")
    found = sum(len(file.tensors) for file in files.values())
    if found != len(promised):
        raise ModelRejected(f"{index} names {len(promised):,} tensors; its files hold {found:,}")


def _weight_map(index: Path) -> dict[str, str]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ModelRejected(f"{index}: 'weight_map' must be an object with a file for each tensor")
    checked: dict[str, str] = {}
    for name, file in table.items():
        # Names from a hostile index would otherwise lead anywhere on this disk.
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise ModelRejected(
                f"{index}: {str(file)[:100]!r} is no name of a .safetensors file in the directory"
            )
        checked[name] = file
    return checked


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; raises `ModelRejected`."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelRejected(f"{path} is larger than {MAX_JSON_BYTES:,} bytes")
        value: object = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelRejected(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path} is no JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ModelRejected(f"{path} is no JSON object")
    return value


def model_files(path: Path) -> tuple[Path, ...]:
    """The files that decide what a model computes: the file itself, or a directory's configuration and weights."""
    if not path.is_dir():
        return (path,)
    index = (path / INDEX,) if (path / INDEX).exists() else ()
    return (path / CONFIG, *index, *(path / name for name in weight_files(path)))


def fingerprint(path: Path) -> tuple[int, int]:
    """`(bytes, stamp)` of a model: equal as long as nobody has touched its files. Raises `OSError`.

    The stamp of a file is its modification time in nanoseconds, that of a directory a hash of its files'.
    """
    if not path.is_dir():
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    statuses = [(file.name, file.stat()) for file in model_files(path)]
    listing = repr([(name, status.st_size, status.st_mtime_ns) for name, status in statuses])
    stamp = int.from_bytes(hashlib.sha256(listing.encode()).digest()[:7], "little")
    return sum(status.st_size for _, status in statuses), stamp
