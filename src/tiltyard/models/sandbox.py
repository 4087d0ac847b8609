"""The Jinja2 environment for chat templates: Hugging Face's settings, and limits on hostile templates.

A chat template comes inside a model file, so it is foreign code. Jinja2's sandbox keeps it away from the
host; this module bounds what it can use up (steps, characters, time) and takes away what is random, so that a
rendering says the same each time. Python cannot interrupt one long operation, so every operation that can
make a large value from small ones is priced before it runs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import GeneratorType
from typing import Any, NoReturn, TypeAlias

from jinja2 import TemplateError, Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 200_000
"""Loop rounds and calls in one rendering; a conversation of 1,000 messages takes some 20,000."""
MAX_CHARACTERS = 4_000_000
"""Size of the output, and of any one value on the way to it; a context of 128k tokens is about 600,000."""
MAX_WORK = 512_000_000
"""Characters made in one rendering, counting each intermediate value."""
MAX_SECONDS = 5.0
"""Wall time of one rendering: a backstop that can only refuse, never change what a rendering says."""
MAX_WIDTH = 1_000
MAX_INTEGER_BITS = 1_024
MAX_SOURCE_CHARACTERS = 1_000_000

Value: TypeAlias = Any  # What a template computes with; Jinja2 itself has no narrower type.

# Random, or expanding a few bytes into many, without a chat template having a use for it.
REMOVED_FILTERS = (
    "attr",
    "batch",
    "center",
    "filesizeformat",
    "pprint",
    "random",
    "round",
    "slice",
    "urlize",
    "wordwrap",
    "xmlattr",
)
REMOVED_GLOBALS = ("cycler", "joiner", "lipsum")
PADDING_METHODS = frozenset(("center", "expandtabs", "ljust", "rjust", "to_bytes", "zfill"))
WIDE_PERCENT_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")
WIDE_BRACE_FORMAT = re.compile(r"\d{4}|:[^}]*\{")


class LimitExceeded(TemplateError):
    """A rendering used more than it may, or something that it may not use."""


class Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.work = MAX_WORK
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Count one loop round or call."""
        self.steps -= 1
        if self.steps < 0:
            raise LimitExceeded(f"it takes more than {MAX_STEPS:,} steps")
        if time.monotonic() > self.deadline:
            raise LimitExceeded(f"it takes more than {MAX_SECONDS:g} seconds")

    def spend(self, characters: int) -> None:
        """Count a value of this many characters, before it is made."""
        if characters > MAX_CHARACTERS:
            raise LimitExceeded(f"it makes a value of more than {MAX_CHARACTERS:,} characters")
        self.work -= characters
        if self.work < 0:
            raise LimitExceeded(f"it makes more than {MAX_WORK:,} characters in all")


_budget: ContextVar[Budget] = ContextVar("budget")


def render_bounded(pieces: Callable[[], Iterable[str]]) -> str:
    """Join what a template generates, under a fresh budget; raises `LimitExceeded`."""
    token = _budget.set(Budget())
    try:
        output: list[str] = []
        size = 0
        for piece in pieces():
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise LimitExceeded(f"its output is longer than {MAX_CHARACTERS:,} characters")
            output.append(piece)
        return "".join(output)
    finally:
        _budget.reset(token)


def characters_in(value: Value, *, printed: bool = True) -> int:
    """Return about how many characters a value prints as, giving up past `MAX_CHARACTERS`.

    Raises `LimitExceeded` for objects whose text would be a memory address, if it is to be `printed`.
    """
    total = 0
    waiting: list[Value] = [value]
    while waiting and total <= MAX_CHARACTERS:
        item = waiting.pop()
        if isinstance(item, str | bytes):
            total += len(item) + 4
        elif isinstance(item, Mapping):
            total += 2
            for key, inner in item.items():
                waiting += (key, inner)
        elif isinstance(item, list | tuple | set | frozenset):
            total += 2
            waiting.extend(item)
        elif isinstance(item, int):
            total += 8 + item.bit_length() // 3
        elif item is None or isinstance(item, float | Undefined | range):
            total += 24
        elif type(item).__name__ in ("dict_keys", "dict_values", "dict_items", "LoopContext", "_GroupTuple"):
            total += 16
            waiting.extend(item if type(item).__name__.startswith("dict_") else ())
        elif printed:
            raise LimitExceeded(f"it prints a {type(item).__name__}, which has no text of its own")
        else:
            total += 16
    return total


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; one instance a template."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    names: frozenset[str] = frozenset()
    """Variables that the compiled template reads."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, loopcontrols],
            finalize=_finalize,
            # Folding would run filters while compiling, outside any budget.
            optimized=False,
        )
        for name in REMOVED_FILTERS:
            del self.filters[name]
        for name in REMOVED_GLOBALS:
            del self.globals[name]
        plain = dict(self.filters)
        self.filters["tojson"] = _tojson
        for name in (
            "string",
            "list",
            "escape",
            "e",
            "forceescape",
            "urlencode",
            "replace",
            "indent",
            "join",
            "sum",
            "format",
        ):
            self.filters[name] = _priced(name, plain[name])
        self.globals["raise_exception"] = _raise_exception

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the output of a macro or block."""
        texts = list(pieces)
        _budget.get().spend(sum(map(len, texts)))
        return "".join(texts)

    def text_of(self, *values: Value) -> str:
        """Do what the `~` operator does."""
        _budget.get().spend(sum(map(characters_in, values)))
        return "".join(map(str, values))

    def checked(self, value: Value) -> Value:
        """Price a list, tuple or dictionary that a template writes."""
        _budget.get().spend(
            sum(characters_in(item) if _is_container(item) else 1 for item in _items_of(value))
        )
        return value

    def step(self) -> None:
        """Do nothing; the call itself is counted."""

    def call(__self, __context: Context, __obj: Value, *args: Value, **kwargs: Value) -> Value:  # noqa: N805
        """Count and price a call; otherwise as the sandbox does."""
        budget = _budget.get()
        budget.step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes | int) and not isinstance(__obj, type):
            args = tuple(list(value) if isinstance(value, GeneratorType) else value for value in args)
            _price_method(budget, owner, getattr(__obj, "__name__", ""), (*args, *kwargs.values()))
        elif isinstance(__obj, type):  # `dict(a=x, b=x)` doubles as a literal does
            budget.spend(
                sum(
                    characters_in(value, printed=False)
                    for value in (*args, *kwargs.values())
                    if _is_container(value)
                )
            )
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        """Price an operation before it runs."""
        budget = _budget.get()
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (max(1, right) if operator == "**" else 1) + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise LimitExceeded(f"it makes a number of more than {MAX_INTEGER_BITS:,} bits")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and not isinstance(many, int | float):
                    budget.spend(characters_in(many) * max(0, times))
        elif operator == "+" and not isinstance(left, float):
            budget.spend(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            if WIDE_PERCENT_FORMAT.search(left):
                raise LimitExceeded("it pads text by a width of more than three digits")
            budget.spend(len(left) * MAX_WIDTH + characters_in(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Value) -> Callable[..., str] | None:
        """Refuse format strings that pad without bound."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and WIDE_BRACE_FORMAT.search(value.__self__):
            raise LimitExceeded("it formats text with a computed width or one of more than three digits")
        return wrapped

    def compile_chat(self, source: str) -> Any:
        """Compile a template with its loops, joins and literals under the budget; sets `names`."""
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise LimitExceeded(f"it is longer than {MAX_SOURCE_CHARACTERS:,} characters")
        tree = self.parse(source)
        self.names = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
        _instrument(tree)
        code = self.compile(tree)
        return self.template_class.from_code(self, code, self.make_globals(None))


class GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant said, for training; serving only prints it."""

    tags = {"generation"}  # noqa: RUF012  # the type that Jinja2 declares

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse to a scope with the same output."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def strftime_at(now: datetime) -> Callable[[str], str]:
    """Make Hugging Face's `strftime_now` for a given moment."""

    def strftime_now(layout: str) -> str:
        # glibc pads to any width that a digit asks for.
        if len(layout) > 100 or any(character.isdigit() for character in layout):
            raise LimitExceeded("it asks strftime_now for a long or padded date")
        return now.strftime(layout)

    return strftime_now


def _instrument(tree: nodes.Template) -> None:
    """Put a counted call into every loop round, and price `~` and literals."""
    for loop in tree.find_all(nodes.For):
        tick = nodes.ExprStmt(_environment_call("step", []), lineno=loop.lineno)
        loop.body.insert(0, tick)
    _replace(tree)


def _replace(node: nodes.Node) -> None:
    for name, child in node.iter_fields():
        if isinstance(child, nodes.Node):
            _replace(child)
            setattr(node, name, _guarded(child))
        elif isinstance(child, list):
            for index, item in enumerate(child):
                if isinstance(item, nodes.Node):
                    _replace(item)
                    child[index] = _guarded(item)


def _guarded(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Concat):
        return _environment_call("text_of", node.nodes)
    literal = isinstance(node, nodes.List | nodes.Dict) or (
        isinstance(node, nodes.Tuple) and node.ctx == "load"
    )
    if literal and isinstance(node, nodes.Expr):
        return _environment_call("checked", [node])
    return node


def _environment_call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


# Asking for the context keeps Jinja2 from calling this while it compiles.
@pass_context
def _finalize(_context: Context, value: Value) -> Value:
    if not isinstance(value, str):
        _budget.get().spend(characters_in(value))
    return value


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Value,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Hugging Face's templates expect: not escaped for HTML, Unicode kept."""
    if isinstance(indent, int) and indent > 16:
        raise LimitExceeded("it indents JSON by more than 16 spaces")
    _budget.get().spend(characters_in(value))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _priced(name: str, original: Callable[..., Value]) -> Callable[..., Value]:
    """Wrap a filter that can grow its input."""

    def check(arguments: Sequence[Value], named: Mapping[str, Value]) -> None:
        budget = _budget.get()
        # Filters that need Jinja2's context get it first.
        given = arguments[1:] if hasattr(original, "jinja_pass_arg") else arguments
        values = (*given, *named.values())
        if name == "sum":
            if not isinstance(named.get("start", given[2] if len(given) > 2 else 0), int | float):
                raise LimitExceeded("it sums things that are no numbers")
            return
        if name == "replace":
            text, old, new = (str(part) for part in values[:3])
            budget.spend(len(text) + (text.count(old)) * len(new))
            return
        if name == "indent":
            width = values[1] if len(values) > 1 else 4
            step = len(width) if isinstance(width, str) else int(width)
            if step > MAX_WIDTH:
                raise LimitExceeded(f"it indents by more than {MAX_WIDTH:,}")
            budget.spend(len(values[0]) + (str(values[0]).count("\n") + 1) * step)
            return
        if name == "join":
            between = len(str(values[1])) if len(values) > 1 else 0
            budget.spend(characters_in(values[0]) + between * _length(values[0]))
            return
        if name == "format":
            if WIDE_PERCENT_FORMAT.search(str(values[0])):
                raise LimitExceeded("it pads text by a width of more than three digits")
            budget.spend(len(str(values[0])) * MAX_WIDTH + sum(map(characters_in, values[1:])))
            return
        if name == "list":
            if _is_container(values[0]):
                budget.spend(characters_in(values[0]))
            return
        growth = {"escape": 5, "e": 5, "forceescape": 5, "urlencode": 12}.get(name, 1)
        budget.spend(characters_in(values[0]) * growth)

    return _Priced(original, check)


class _Priced:
    """A filter and the check that runs before it; keeps the original's attributes for Jinja2."""

    def __init__(
        self, original: Callable[..., Value], check: Callable[[Sequence[Value], Mapping[str, Value]], None]
    ) -> None:
        self.original = original
        self.check = check
        self.__dict__.update({k: v for k, v in vars(original).items() if k.startswith("jinja_")})

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        # Filters hand each other generators; only a list can be priced before it is used.
        ready = [list(value) if isinstance(value, GeneratorType) else value for value in args]
        self.check(ready, kwargs)
        return self.original(*ready, **kwargs)


def _price_method(budget: Budget, owner: str | bytes | int, name: str, arguments: Sequence[Value]) -> None:
    if name in PADDING_METHODS and any(isinstance(value, int) and value > MAX_WIDTH for value in arguments):
        raise LimitExceeded(f"it pads by more than {MAX_WIDTH:,}")
    if name in ("translate", "from_bytes") or (isinstance(owner, bytes) and name in ("replace", "join")):
        raise LimitExceeded(f"it calls {name}")
    if isinstance(owner, int):
        return
    if name == "replace" and isinstance(owner, str) and len(arguments) >= 2:
        budget.spend(len(owner) + owner.count(arguments[0]) * len(arguments[1]))
    elif name == "join" and arguments:
        budget.spend(characters_in(arguments[0]) + len(owner) * _length(arguments[0]))
    elif name in ("format", "format_map"):
        budget.spend(len(owner) * MAX_WIDTH + sum(map(characters_in, arguments)))
    else:
        budget.spend(len(owner))


def _is_container(value: Value) -> bool:
    return isinstance(value, Mapping | list | tuple | set | frozenset)


def _items_of(value: Value) -> Iterable[Value]:
    return value.values() if isinstance(value, Mapping) else value


def _length(value: Value) -> int:
    return len(value) if hasattr(value, "__len__") and not isinstance(value, Undefined) else 1
