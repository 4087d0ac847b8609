"""What a file's metadata says about a mixture of experts; what we would compute otherwise is refused by name."""

from __future__ import annotations

from dataclasses import dataclass

from tiltyard.errors import ModelRejected
from tiltyard.models.metadata import Fields

MAX_EXPERTS = 1024
SOFTMAX = 1
"""The one `expert_gating_func` that we know, and what a file means that does not say."""


@dataclass(frozen=True)
class Experts:
    """A mixture in every layer: each token goes to `used` of `count` networks of inner width `ff_dim`."""

    count: int = 0
    """0: there is none."""
    used: int = 0
    ff_dim: int = 0


def experts_of(keys: Fields, *, expected: bool) -> Experts:
    """Read and check; `expected` where the family is a mixture by name. Raises `ModelRejected`."""
    path, metadata = keys.gguf.path, keys.gguf.metadata
    count = keys.size("expert_count") if expected else keys.count("expert_count")
    if count == 0:
        return Experts()
    used = keys.size("expert_used_count")
    if not 2 <= count <= MAX_EXPERTS or used > count:
        raise ModelRejected(
            f"{path}: {used:,} of {count:,} experts a token ({keys.name('expert_used_count')}, "
            f"{keys.name('expert_count')}); supported: up to all of 2 to {MAX_EXPERTS:,}"
        )
    if (gate := metadata.get(keys.name("expert_gating_func"), SOFTMAX)) not in (0, SOFTMAX):
        raise ModelRejected(
            f"{path}: {keys.name('expert_gating_func')!r} is {gate!r}; supported: {SOFTMAX} (softmax)"
        )
    for key, off in (
        ("expert_shared_count", 0),
        ("expert_weights_scale", 1.0),
        ("expert_group_count", 0),
        ("leading_dense_block_count", 0),
    ):
        if (value := metadata.get(keys.name(key), off)) not in (0, off):
            raise ModelRejected(f"{path}: {keys.name(key)!r} is {value!r}; such experts are not supported")
    inner = keys.size("feed_forward_length") if "expert_feed_forward_length" not in keys else 0
    return Experts(count, used, inner or keys.size("expert_feed_forward_length"))
