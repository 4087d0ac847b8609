"""How much a request is, before anybody has tokenized it, and how its prompt begins."""

from __future__ import annotations

from collections.abc import Iterator

from tiltyard.router.load import AnswerLengths
from tiltyard.router.prefixes import CHARACTERS_A_TOKEN, Beginning
from tiltyard.wire.openai import ChatCompletionRequest, CompletionRequest
from tiltyard.wire.worker import IdentityStatus

Asked = ChatCompletionRequest | CompletionRequest


def prompt_tokens(request: Asked) -> int:
    """About how many tokens a prompt has; exactly, where it comes as tokens."""
    if isinstance(request, CompletionRequest):
        text = isinstance(request.prompt, str)
        return len(request.prompt) // CHARACTERS_A_TOKEN if text else len(request.prompt)
    tools = 0 if request.tool_use is None else len(request.tool_use.to_json())
    return (tools + sum(len(message.content or "") for message in request.messages)) // CHARACTERS_A_TOKEN


def answer_tokens(request: Asked, identity: IdentityStatus, lengths: AnswerLengths) -> int:
    """About how many tokens all answers of a request will have."""
    limit = request.effective_sampling(identity.declaration.sampling).max_tokens
    if limit is not None and request.ignore_eos:
        return request.n * limit
    return request.n * lengths.expected(identity.name, limit=limit, least=request.min_tokens)


def beginning(request: Asked, identity: str, tenant: str, *, answer: str = "") -> Beginning:
    """The prompt as a worker's cache knows it: by identity and tenant; with an `answer`, the conversation that it ends."""
    scope = (identity, tenant)
    if isinstance(request, CompletionRequest) and not isinstance(request.prompt, str):
        return Beginning.of_ids(scope, request.prompt)
    parts = [*_parts(request)]
    if answer:
        parts.append(_turn("assistant", answer) if isinstance(request, ChatCompletionRequest) else answer)
    return Beginning.of(scope, parts, prompt_tokens(request) + len(answer) // CHARACTERS_A_TOKEN)


def _parts(request: Asked) -> Iterator[str]:
    if isinstance(request, CompletionRequest):
        yield request.prompt if isinstance(request.prompt, str) else ""
        return
    if request.tool_use is not None:
        yield request.tool_use.to_json()  # templates show tools in front
    for message in request.messages:
        yield _turn(message.role, message.content or "")
        for call in message.tool_calls:
            yield f"{call.function.name}\x1f{call.function.arguments}"


def _turn(role: str, content: str) -> str:
    return f"\x1e{role}\x1f{content}"
