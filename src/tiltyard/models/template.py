"""Conversations to prompt text, by the chat template that comes with a model.

template = ChatTemplate(source)
template.render([{"role": "user", "content": "Hi"}])   # '<|im_start|>user\\nHi<|im_end|>\\n...'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from jinja2 import TemplateError, TemplateSyntaxError

from tiltyard.errors import InvalidRequest, ModelRejected
from tiltyard.identity.canonical import Digest, digest_of
from tiltyard.models.sandbox import ChatEnvironment, render_bounded, strftime_at


class ChatTemplate:
    """A Jinja2 chat template in Hugging Face's dialect, sandboxed and bounded; threads may share it.

    `render` runs here, where one long operation cannot be interrupted; a server has
    `models/template_process.py:TemplateProcesses` do it.
    """

    def __init__(self, source: str) -> None:
        """Compile; raises `ModelRejected` with the line for a template that is no valid Jinja2."""
        self.source = source
        self.digest: Digest | None = digest_of(source.encode())
        try:
            environment = ChatEnvironment()
            self._template = environment.compile_chat(source)
            self.shows_tools = "tools" in environment.names
            """Whether it reads `tools`."""
        except TemplateSyntaxError as error:
            raise ModelRejected(
                f"the chat template is wrong at line {error.lineno}: {error.message}"
            ) from error
        # SyntaxError and RecursionError: nested deeper than Python's own compiler goes.
        except (TemplateError, SyntaxError, RecursionError, ValueError) as error:
            raise ModelRejected(f"the chat template cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        now: datetime | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt text as Hugging Face's `apply_chat_template` gives it.

        `now` defines `strftime_now`; without it the function is undefined and templates that can do without
        use their own fixed date, so a rendering depends on nothing but its arguments. `variables` are what
        else a template may read (`tools`, `documents`, `enable_thinking`).
        Raises `InvalidRequest` (`param="messages"`) when the template refuses the messages or breaks a limit.
        """
        context = context_of(
            messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
            variables=variables,
        )
        if now is not None:
            context["strftime_now"] = strftime_at(now)
        try:
            return render_bounded(lambda: self._template.generate(context))
        # The template is foreign code and can raise anything; what it raises is its verdict on the messages.
        except Exception as error:
            raise refused_by_template(str(error) or type(error).__name__) from error


def context_of(
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    bos_token: str,
    eos_token: str,
    variables: Mapping[str, object] | None,
) -> dict[str, object]:
    """What a template may read, as Hugging Face gives it."""
    return {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
        **(variables or {}),
    }


def refused_by_template(why: str) -> InvalidRequest:
    """The error for messages that a template does not render."""
    return InvalidRequest(f"the chat template does not accept these messages: {why}", param="messages")


class PlainTemplate:
    """What `chat_template = "off"` means: the contents of the turns, joined by blank lines, no markup."""

    digest: Digest | None = None
    shows_tools = False

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Join the contents; raises `InvalidRequest` for content that is no text."""
        texts: list[str] = []
        for index, message in enumerate(messages):
            content = message.get("content")
            if not isinstance(content, str):
                raise InvalidRequest(
                    f"messages[{index}].content must be a string for a model without a chat template",
                    param="messages",
                )
            texts.append(content)
        return "\n\n".join(texts)
