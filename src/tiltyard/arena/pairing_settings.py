"""`[arena.pairing]`: apart from the arithmetic it rules, so that reading the settings loads no numpy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tiltyard.arena.slices import SliceName
from tiltyard.identity.manifest import Frozen, Number, Whole


class PairingSettings(Frozen):
    """`[arena.pairing]`: which pairs are drawn more often."""

    policy: Literal["information", "uniform"] = "information"
    floor: Number = Field(default=0.2, gt=0, le=1)
    """Share of the battles drawn uniformly: every pair keeps at least this share of its uniform chance."""
    sharpness: Number = Field(default=2.0, gt=0, le=16)
    """Power of the gain: 1 draws in proportion to it, more leans to the best pairs."""
    boost: Number = Field(default=2.0, ge=1, le=100)
    """Factor on the gain for a model with fewer than `boost_votes` votes, or behind its target in a slice."""
    boost_votes: Whole = Field(default=100, ge=0)
    max_share: Number = Field(default=0.75, gt=0, le=1)
    """Largest share of the battles in which one model stands, where there are enough others."""
    release_share: Number = Field(default=0.5, ge=0, le=1)
    """Share of the battles, beyond the floor, for the two models of a release whose stage asks for people's votes."""
    slice_targets: dict[SliceName, Annotated[Whole, Field(ge=1)]] = Field(default_factory=dict)
    """Votes that each model shall get in a slice, such as `{ han = 200 }`."""
    outage_failures: Whole = Field(default=3, ge=1)
    """A model that failed so many times in a row rests for `outage_rest_s`."""
    outage_rest_s: Number = Field(default=60.0, ge=0)
