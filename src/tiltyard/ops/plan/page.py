"""A plan as one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from tiltyard import __version__
from tiltyard.ops.plan.plan import Plan, Row
from tiltyard.ops.plan.rows import HEAD, cells


def page(plan: Plan, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """The whole file."""
    environment = Environment(
        loader=PackageLoader("tiltyard.ops.plan"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("plan.html").render(
        head=HEAD,
        rows=[cells(row, plan) for row in rows],
        notes=notes,
        costs=plan.fit.costs,
        limits=plan.fleet.limits,
        digest=plan.trace.digest,
        windows=() if plan.uncertainty is None else plan.uncertainty.windows,
        version=__version__,
    )
