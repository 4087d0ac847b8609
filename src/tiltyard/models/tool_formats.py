"""How models write calls of tools: one row a format, and which row a chat template speaks.

A row is data: a parser (`models/tool_parser.py`) and a grammar (`models/tool_grammar.py`) are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import ToolFormatName


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls. A section holds one call, or a list of them."""

    name: ToolFormatName
    opens: tuple[str, ...] = ()
    """What begins a section."""
    close: str = ""
    """What ends a section; empty: the end of the answer, or the next section."""
    bare: bool = False
    """Whether an answer that begins with JSON may be calls, without anything that opens them."""
    begin: str = ""
    """What a forced section begins with: one of `opens`, with the white space the model was trained on."""
    end: str = ""
    between: str = ""
    """Between two forced sections, or between two calls of one list."""
    listed: bool = False
    """Whether one section holds a list of calls."""
    name_key: str = "name"
    arguments_key: str = "arguments"
    after_name: str = ""
    """Not empty: a call is its name, this text, and the arguments."""
    tagged: bool = False
    """Whether a call is written in tags: `<function=NAME>` and `<parameter=KEY>`."""
    id_characters: int = 0
    """How long the id of a call must be for the template; 0: no matter."""

    @property
    def marks(self) -> frozenset[str]:
        """Texts that tell calls from content; some models have tokens of their own for them."""
        return frozenset(mark for mark in (*self.opens, self.close, self.after_name) if mark)

    def call_id(self, generation: str, choice: int, number: int) -> str:
        """The id of a call: the same for the same place in the same generation."""
        name = digest_of(f"{generation}/{choice}/{number}".encode()).partition(":")[2]
        return name[: self.id_characters] if self.id_characters else f"call_{name[:24]}"


FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat(
        "hermes", ("<tool_call>",), "</tool_call>",
        begin="<tool_call>\n", end="\n</tool_call>", between="\n",
    ),
    ToolFormat(
        "smollm2", ("<tool_call>",), "</tool_call>",
        begin="<tool_call>[", end="]</tool_call>", between=", ", listed=True,
    ),
    ToolFormat(
        "qwen3-coder", ("<tool_call>",), "</tool_call>",
        begin="<tool_call>\n", end="\n</tool_call>", between="\n", tagged=True,
    ),
    ToolFormat("xlam", bare=True, begin="[", end="]", between=", ", listed=True),
    ToolFormat("llama3", ("<|python_tag|>",), bare=True, between="; ", arguments_key="parameters"),
    ToolFormat(
        "mistral", ("[TOOL_CALLS]",), begin="[TOOL_CALLS][", end="]", between=", ", listed=True, id_characters=9
    ),
    ToolFormat(
        "mistral-args", ("[TOOL_CALLS]",), begin="[TOOL_CALLS]", after_name="[ARGS]", id_characters=9
    ),
    ToolFormat(
        "tool-calls", ("<tool_calls>",), "</tool_calls>",
        begin="<tool_calls>[", end="]</tool_calls>", between=", ", listed=True,
    ),
    ToolFormat(
        "nemotron", ("<TOOLCALL>",), "</TOOLCALL>",
        begin="<TOOLCALL>[", end="]</TOOLCALL>", between=", ", listed=True,
    ),
    ToolFormat("granite", ("<|tool_call|>",), begin="<|tool_call|>[", end="]", between=", ", listed=True),
    ToolFormat(
        "cohere", ("<|START_ACTION|>",), "<|END_ACTION|>",
        begin="<|START_ACTION|>[", end="]<|END_ACTION|>", between=", ", listed=True,
        name_key="tool_name", arguments_key="parameters",
    ),
)  # fmt: skip
BY_NAME = {row.name: row for row in FORMATS}

# The first row whose words all stand in a template, and of whose other words none does.
_SIGNS: tuple[tuple[ToolFormatName, tuple[str, ...], tuple[str, ...]], ...] = (
    ("mistral-args", ("[TOOL_CALLS]", "[ARGS]"), ("[CALL_ID]",)),
    ("mistral", ("[TOOL_CALLS]",), ("[ARGS]",)),
    ("nemotron", ("<TOOLCALL>",), ()),
    ("granite", ("<|tool_call|>",), ()),
    ("cohere", ("<|START_ACTION|>", '"tool_name"'), ()),
    ("qwen3-coder", ("<tool_call>", "<function=", "<parameter="), ("<invoke",)),
    ("tool-calls", ("<tool_calls>", "</tool_calls>"), ("<invoke",)),
    ("xlam", ('[{"name": "tool_call_name", "arguments"',), ("<tool_call>",)),
    ("hermes", ("<tool_call>", "</tool_call>"), ("<function=", "<arg_key>", "<invoke", "<parameter")),
    ("llama3", ('"parameters": ', "ipython"), ("<tool_call>",)),
)


ONE_CALL_ONLY = "only supports single tool-calls"
"""What Llama 3's templates say when they are shown a message with two calls."""


def detect(template: str) -> ToolFormatName | None:
    """Name the format in which a template writes calls; `None` if it is none that we read.

    >>> detect("{{ '<tool_call>' }}{{ '</tool_call>' }}")
    'hermes'
    """
    for name, words, others in _SIGNS:
        if all(word in template for word in words) and not any(word in template for word in others):
            return name
    return None
