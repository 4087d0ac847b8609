"""A model as a Hugging Face directory: `config.json` and safetensors files, read as if it were a GGUF file.

Names, metadata and layouts are translated to GGUF's, so everything behind this file knows one kind of model::

    config.json                     hidden_size, rope_theta, ...  ->  llama.embedding_length, llama.rope.freq_base, ...
    model.safetensors(.index.json)  model.layers.0.self_attn.q_proj.weight  ->  blk.0.attn_q.weight

Llama's rotation turns neighbours (2i, 2i + 1) in GGUF and halves (i, i + n / 2) here: rows of its queries and keys
change places. Gemma's norms are stored as gain - 1. Nothing is rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import ModelRejected
from tiltyard.models.directory_config import DirectoryConfig
from tiltyard.models.directory_files import CONFIG, INDEX, read_json, weight_files, weight_map
from tiltyard.models.directory_tokenizer import directory_chat_template
from tiltyard.models.gguf import MetadataValue, TensorInfo
from tiltyard.models.safetensors import SafetensorsFile, SafetensorsInfo

STORED = {"F32": (0, "F32"), "F16": (1, "F16"), "BF16": (30, "BF16")}
"""safetensors dtype -> ggml type and its name."""


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
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
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
EXPERT = re.compile(
    r"model\.layers\.(0|[1-9][0-9]{0,3})\.(?:block_sparse_moe|mlp)\.experts\.(0|[1-9][0-9]{0,3})"
    r"\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight"
)
EXPERT_PARTS = {
    "w1": "gate",
    "w2": "down",
    "w3": "up",
    "gate_proj": "gate",
    "down_proj": "down",
    "up_proj": "up",
}
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
        self._places: dict[str, list[tuple[SafetensorsFile, str]]] = {}
        """One place for each tensor, but for the experts of a layer: GGUF has them in one, one behind the other."""
        self._changes: dict[str, Change] = {}
        self._made: dict[str, NDArray[np.uint8]] = {}
        translation = DirectoryConfig(path / CONFIG, config)
        template = directory_chat_template(path)
        spoken: dict[str, MetadataValue] = {} if template is None else {"tokenizer.chat_template": template}
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(translation.metadata() | spoken)
        self._kind = translation.kind
        tensors: dict[str, TensorInfo] = {}
        experts: dict[str, dict[int, tuple[SafetensorsFile, str]]] = {}
        for file in files.values():
            for name, info in file.tensors.items():
                if match := EXPERT.fullmatch(name):
                    stack = f"blk.{match[1]}.ffn_{EXPERT_PARTS[match[3]]}_exps.weight"
                    if experts.setdefault(stack, {}).setdefault(int(match[2]), (file, name)) != (file, name):
                        raise ModelRejected(f"{path}: {name!r} is there twice, in two of its files")
                    continue
                if BUFFER.fullmatch(name) or (name == "lm_head.weight" and translation.tied):
                    continue
                self._add(tensors, file, name, info)
        for stack, parts in experts.items():
            tensors[stack] = self._stacked(stack, parts)
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
        views = [file.tensor_data(stored_name) for file, stored_name in self._places[name]]
        data = views[0] if len(views) == 1 else np.concatenate(views)
        change = self._changes.get(name)
        return data if change is None else change(data)

    def forget(self, name: str) -> None:
        """Give the memory of a tensor's pages back; they are read again if they are needed again."""
        for file, stored_name in self._places.get(name, ()):
            file.forget(stored_name)

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
        self._places[name] = [(file, stored_name)]

    def _stacked(self, name: str, parts: Mapping[int, tuple[SafetensorsFile, str]]) -> TensorInfo:
        """The experts of a layer as one tensor (expert, rows, columns); all must be there, and alike."""
        if missing := set(range(len(parts))) - parts.keys():
            raise ModelRejected(f"{self.path}: expert {min(missing)} of {name!r} is missing")
        places = [parts[number] for number in range(len(parts))]
        infos = [file.tensors[stored_name] for file, stored_name in places]
        first = infos[0]
        if any((info.dtype, info.shape) != (first.dtype, first.shape) for info in infos) or (
            first.dtype not in STORED
        ):
            raise ModelRejected(
                f"{self.path}: the experts of {name!r} differ in shape or type, or are none of {', '.join(STORED)}"
            )
        self._places[name] = places
        ggml_type, type_name = STORED[first.dtype]
        size = sum(info.size_bytes for info in infos)
        return TensorInfo(name, ggml_type, type_name, (len(parts), *first.shape), first.offset, size)

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
        if not isinstance(heads, int) or heads < 1 or len(info.shape) != 2 or info.shape[0] % (2 * heads):
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


def _check_index(path: Path, files: Mapping[str, SafetensorsFile]) -> None:
    """What the index promises must be in the files that it names, and nothing else."""
    index = path / INDEX
    if not index.exists():
        return
    promised = weight_map(index)
    for name, file in promised.items():
        if name not in files[file].tensors:
            raise ModelRejected(f"{index}: tensor {name[:100]!r} is not in {file}")
    found = sum(len(file.tensors) for file in files.values())
    if found != len(promised):
        raise ModelRejected(f"{index} names {len(promised):,} tensors; its files hold {found:,}")
