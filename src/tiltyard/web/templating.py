"""Turn a template of this package into an HTML response."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from tiltyard.telemetry.trace_context import traceparent_now
from tiltyard.web.languages import (
    LANGUAGES,
    look_up,
    look_up_number,
    moment,
    number_in_words,
    percent,
    spoken,
)
from tiltyard.web.telling import say, told

STATIC_DIRECTORY = files("tiltyard.web") / "static"


@cache
def environment() -> Environment:
    """The Jinja environment of all pages: escaping on, a missing name is an error."""
    made = Environment(
        loader=PackageLoader("tiltyard.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    made.policies["ext.i18n.trimmed"] = True
    # The callables ask for the request's language each time, so one environment serves all languages.
    made.install_gettext_callables(look_up, look_up_number, newstyle=True)  # type: ignore[attr-defined]
    made.globals["languages"] = LANGUAGES
    made.globals["spoken"] = spoken
    made.globals["told"] = told
    made.globals["say"] = say
    made.filters["number"] = number_in_words
    made.filters["percent"] = percent
    made.filters["moment"] = moment
    made.globals["asset"] = asset
    made.globals["traceparent"] = traceparent_now
    made.filters["setting_name"] = setting_name
    made.filters["short_digest"] = short_digest
    made.filters["sentence"] = sentence
    made.filters["code"] = code
    return made


@cache
def asset(name: str) -> str:
    """Address of a file in `static/`; it changes with the content, so browsers may keep it for ever.

    >>> asset("tiltyard.css").startswith("/static/tiltyard.css?v=")
    True
    """
    content = (STATIC_DIRECTORY / name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"


def setting_name(field: str) -> str:
    """Write a manifest field as people say it.

    >>> setting_name("default_sampling.top_p")
    'default sampling: top p'
    """
    return field.replace("_", " ").replace(".", ": ")


def code(text: str) -> Markup:
    """Escape a text and set what stands between backticks as code.

    >>> str(code("run `a<b`"))
    'run <code>a&lt;b</code>'
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped first


def sentence(message: str) -> str:
    """Begin an error's message as a page does: with a capital.

    >>> sentence("the message is empty. Write a question.")
    'The message is empty. Write a question.'
    """
    return message[:1].upper() + message[1:]


def short_digest(value: str) -> str:
    """Shorten a digest to what the eye can compare; anything else stays.

    >>> short_digest("sha256:" + "ab" * 32)
    'sha256:abababababab…'
    """
    return f"{value[:19]}…" if value.startswith("sha256:") and len(value) > 20 else value


def render(
    name: str, *, status: int = 200, headers: dict[str, str] | None = None, **context: object
) -> HTMLResponse:
    """Render `templates/<name>` with `context` in the request's language; the page is never stored by caches."""
    html = environment().get_template(name).render(**context)
    common = {"cache-control": "no-store", "content-language": spoken().tag}
    return HTMLResponse(html, status_code=status, headers={**common, **(headers or {})})
