"""OpenTelemetry's names for generative AI: the current ones and those that dashboards made earlier still read.

Current: open-telemetry/semantic-conventions-genai 0.1.0. The Python package of constants marks every `GEN_AI_*` name deprecated since
they moved there, so ours are kept here. Legacy: semantic-conventions up to 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tiltyard.telemetry.tracing import Attribute, Attributes
from tiltyard.wire.telemetry import Names

CONVENTIONS: Final = "semantic-conventions-genai 0.1.0"
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
OUR_NAME: Final = "tiltyard"
"""Who provides the model, as seen by whoever asks: this server, whatever engine runs it."""
REQUEST_MODEL: Final = "gen_ai.request.model"
STREAM: Final = "gen_ai.request.stream"
SEED: Final = "gen_ai.request.seed"
CHOICES: Final = "gen_ai.request.choice.count"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
TOP_K: Final = "gen_ai.request.top_k"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
OUTPUT_TYPE: Final = "gen_ai.output.type"
CONVERSATION: Final = "gen_ai.conversation.id"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
"""Seconds."""
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
EVALUATION: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
SCORE: Final = "gen_ai.evaluation.score.value"
LABEL: Final = "gen_ai.evaluation.score.label"
ERROR: Final = "error.type"

LEGACY: Final[Mapping[str, str]] = {
    PROVIDER: "gen_ai.system",
    INPUT_TOKENS: "gen_ai.usage.prompt_tokens",
    OUTPUT_TOKENS: "gen_ai.usage.completion_tokens",
    SEED: "gen_ai.openai.request.seed",
    OUTPUT_TYPE: "gen_ai.openai.request.response_format",
    INPUT_MESSAGES: "gen_ai.prompt",
    OUTPUT_MESSAGES: "gen_ai.completion",
}
"""What a name was called before; names that are not here have not changed."""


def spelled(attributes: Attributes, names: Names) -> dict[str, Attribute]:
    """Attributes under the names that the settings ask for.

    >>> spelled({PROVIDER: "tiltyard"}, "both")
    {'gen_ai.provider.name': 'tiltyard', 'gen_ai.system': 'tiltyard'}
    """
    said: dict[str, Attribute] = {}
    for name, value in attributes.items():
        old = LEGACY.get(name)
        if old is None or names != "legacy":
            said[name] = value
        if old is not None and names != "current":
            said[old] = value
    return said
