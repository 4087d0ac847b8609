"""What helps when an objective is missed, kind by kind: one sentence for the person who was woken."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tiltyard.objectives.declaration import Kind

HELP: Final[Mapping[Kind, str]] = MappingProxyType(
    {
        "time_to_first_token": "see what waits: `tiltyard fleet status`, queue and prefill in `GET /metrics`; add replicas or shorten prompts.",
        "time_per_output_token": "see how many answers run at once: `tiltyard fleet status`; add replicas or lower workers.max_sequences.",
        "error_rate": "`tiltyard events tail --type generation.finished` names errors and workers; see `GET /ready` and the workers' output.",
        "availability": "`tiltyard events tail --type worker.stopped` says why workers ended.",
        "vote_write": "votes were refused for want of the log: see whether the disk of the data directory is full or gone.",
        "pair_assignment": "do not weight by inverse probability until the cause is known; `tiltyard arena health` says more.",
        "reveal_before_vote": "stop the arena: `tiltyard events tail --type sides.revealed` names the battles; their votes are not blind.",
        "data_lag": "no vote is lost: `tiltyard events verify`, then `tiltyard events rebuild`.",
        "judge_parse_failures": "`tiltyard judge show` says why verdicts could not be read; hold the judge to its form (a grammar) or raise its max_tokens.",
    }
)
