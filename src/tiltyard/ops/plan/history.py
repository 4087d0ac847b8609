"""What the log knows of a deployment: what its steps cost, what passes outside the engine, its sizes, its replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import IdentityRegistered
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Deployment
from tiltyard.ops.load.logged import LoggedRequest
from tiltyard.ops.plan.setup import Guessing
from tiltyard.ops.plan.steps import Observed, StepFit, Work, fit_steps

MOST_OUTSIDE = 2_000
"""Times outside of the engine that are kept to draw from."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What requests say of the engine that answered them."""

    fit: StepFit
    outside_s: tuple[float, ...]
    guessing: Guessing
    workers: int
    """Those that answered."""


def learn(requests: Sequence[LoggedRequest]) -> Learned:
    """Fit to requests of one deployment; raises `InvalidRequest` if they do not say what their steps ran."""
    phases = [phase for request in requests for phase in request.phases]
    if not phases:
        raise InvalidRequest(
            "these requests do not say what the engine ran for them: they are from another kind of engine, or from an earlier "
            "version. Serve some with this one, or measure with `tiltyard plan calibrate` and give --steps.",
            param="trace",
        )
    fit = fit_steps(
        [
            Observed(
                Work(
                    phase.work.steps,
                    phase.work.prompt_tokens,
                    phase.work.answer_tokens,
                    phase.work.context_tokens,
                ),
                phase.seconds,
            )
            for phase in phases
        ]
    )
    outside = sorted(s for request in requests if (s := request.outside_s) is not None and not request.failed)
    every = max(1, -(-len(outside) // MOST_OUTSIDE))
    return Learned(
        fit,
        tuple(outside[::every]) or (0.0,),
        guessing_in(requests),
        len({request.worker for request in requests}),
    )


def guessing_in(requests: Sequence[LoggedRequest]) -> Guessing:
    """What guessing ahead saved, over all of them."""
    tokens = sum(sum(request.answers) for request in requests)
    accepted = sum(request.accepted for request in requests)
    drafted = sum(request.drafted for request in requests)
    steps = tokens - accepted
    if not accepted or steps <= 0:
        return Guessing()
    return Guessing(accepted / tokens, 1 + drafted / steps)


def deployment_in(log: EventLog, requests: Sequence[LoggedRequest]) -> tuple[Digest, Deployment]:
    """The deployment that answered most of them; raises `InvalidRequest` if the log does not say what it is."""
    (digest, _), *_ = Counter(request.deployment for request in requests).most_common(1)
    for event in log.read(types=[IdentityRegistered], newest_first=True):
        if isinstance(event.data, IdentityRegistered) and event.data.deployment == digest:
            return digest, event.data.deployment_manifest
    raise InvalidRequest(f"the log does not say what deployment {digest[:19]}… is", param="trace")
