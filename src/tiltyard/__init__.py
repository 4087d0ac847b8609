"""Tiltyard serves language models, compares them blind, and replays every answer bit for bit."""

__version__ = "0.1.0"
