"""What every process says of itself: memory, processor time, open files, garbage collection, and which version it is."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, Info, ProcessCollector

from tiltyard import __version__


def register_process(registry: CollectorRegistry, process: str) -> None:
    """Add the usual `process_*` and `python_gc_*`, and `tiltyard_build_info{version, process}`; once for each registry."""
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    Info("tiltyard_build", "Version, and which process of tiltyard this is.", registry=registry).info(
        {"version": __version__, "process": process}
    )
