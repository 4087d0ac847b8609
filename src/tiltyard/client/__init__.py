"""The one way to ask a model, and programs over it: prompts that generate, select and fork, in plain Python."""

from __future__ import annotations

from tiltyard.client.blocking import BlockingProgram, BlockingPrompt, blocking
from tiltyard.client.branches import Branches
from tiltyard.client.client import DEFAULT_URL, Answer, AnswerStream, ModelClient, ModelEntry, Usage
from tiltyard.client.gen import GenStream
from tiltyard.client.likelihood import ChoiceScore
from tiltyard.client.program import Program
from tiltyard.client.prompt import Prompt
from tiltyard.client.retries import Retries
from tiltyard.client.steps import Step, StepFailed
from tiltyard.client.tools import Caller, Tool, tool

__all__ = [
    "DEFAULT_URL",
    "Answer",
    "AnswerStream",
    "BlockingProgram",
    "BlockingPrompt",
    "Branches",
    "Caller",
    "ChoiceScore",
    "GenStream",
    "ModelClient",
    "ModelEntry",
    "Program",
    "Prompt",
    "Retries",
    "Step",
    "StepFailed",
    "Tool",
    "Usage",
    "blocking",
    "tool",
]
