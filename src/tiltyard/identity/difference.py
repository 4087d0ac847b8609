"""Which fields two manifests differ in, and whether such a field can change a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiltyard.identity.canonical import Json
from tiltyard.identity.manifest import Behaviour, Deployment


@dataclass(frozen=True)
class Difference:
    """One field that two identities do not share."""

    field: str
    """Path in the manifest, such as `behaviour.default_sampling.temperature`."""
    left: Json
    right: Json
    """`None` also stands for a field that one side does not have."""
    can_change_a_token: bool
    """True for every behaviour field, false for every deployment field: that is how the two are divided."""


def behaviour_differences(left: Behaviour, right: Behaviour) -> list[Difference]:
    """Compare what can change a token; equal digests give an empty list and the other way round."""
    return list(_compare("behaviour", left.to_json(), right.to_json(), can_change_a_token=True))


def deployment_differences(left: Deployment, right: Deployment) -> list[Difference]:
    """Compare what can change only speed or cost; the behaviour that a deployment names is left out."""
    without = {"behaviour"}
    return list(
        _compare(
            "deployment",
            left.model_dump(mode="json", exclude=without),
            right.model_dump(mode="json", exclude=without),
            can_change_a_token=False,
        )
    )


def _compare(path: str, left: Json, right: Json, *, can_change_a_token: bool) -> Iterator[Difference]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted(left.keys() | right.keys()):
            yield from _compare(
                f"{path}.{key}", left.get(key), right.get(key), can_change_a_token=can_change_a_token
            )
    elif isinstance(left, Sequence) and isinstance(right, Sequence) and list(left) == list(right):
        return
    elif left != right or type(left) is not type(right):
        yield Difference(path, left, right, can_change_a_token)
