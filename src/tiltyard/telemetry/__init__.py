"""Metrics, traces and structured logs: names in one place, no decisions."""
