"""The one way to ask a model: an OpenAI-compatible client that keeps identity and generation."""

from __future__ import annotations

from tiltyard.client.client import DEFAULT_URL, Answer, AnswerStream, ModelClient, ModelEntry, Usage

__all__ = ["DEFAULT_URL", "Answer", "AnswerStream", "ModelClient", "ModelEntry", "Usage"]
