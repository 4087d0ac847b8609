"""Chat templates against Transformers' own renderings, and limits against hostile ones."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tiltyard.errors import InvalidRequest, ModelRejected
from tiltyard.models.template import ChatTemplate, PlainTemplate
from tiltyard.models.template_process import TemplateProcesses

TEMPLATES = "serving/chat_templates"
NOON = datetime(2024, 7, 26, 12, 0, 0)  # noqa: DTZ001  # the moment at which the goldens were made


def render(template: ChatTemplate, context: dict[str, Any], now: datetime | None = NOON) -> str:
    variables = dict(context)
    return template.render(
        variables.pop("messages"),
        add_generation_prompt=variables.pop("add_generation_prompt", False),
        bos_token=variables.pop("bos_token", ""),
        eos_token=variables.pop("eos_token", ""),
        now=now,
        variables=variables,
    )


@cache
def template_of(folder: Path, file: str) -> ChatTemplate:
    return ChatTemplate((folder / file).read_text())


def golden_context(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    context: dict[str, Any] = json.loads((folder / entry["context_file"]).read_text())
    return context | entry.get("extra_context", {})


def test_all_renderings_of_transformers_are_reproduced(shared_data: Path) -> None:
    """202 renderings of 70 real templates; no exceptions."""
    folder = shared_data / TEMPLATES
    goldens = json.loads((folder / "vectors/transformers_golden.json").read_text())["vectors"]
    wrong = []
    for golden in goldens:
        template = template_of(folder, golden["template_file"])
        if render(template, golden_context(folder, golden)) != golden["expected"]:
            wrong.append(golden["id"])
    assert len(goldens) == 202
    assert wrong == []


def test_what_transformers_refuses_is_refused(shared_data: Path) -> None:
    folder = shared_data / TEMPLATES
    document = json.loads((folder / "vectors/transformers_golden.json").read_text())
    # An error names only template and context; tokens and such are those of the template's other renderings.
    assert len(document["errors"]) == 26
    for refused in document["errors"]:
        file, _, context_name = refused["id"].partition("#")
        context = json.loads((folder / f"minja/{context_name}.json").read_text())
        (path,) = folder.glob(f"{file.split('/')[0]}/**/{file.split('/')[1]}")
        with pytest.raises(InvalidRequest) as refusal:
            render(template_of(folder, str(path.relative_to(folder))), context)
        assert refusal.value.param == "messages"


@pytest.fixture(scope="module")
def processes() -> Iterator[TemplateProcesses]:
    processes = TemplateProcesses()
    yield processes
    processes.close()


def test_the_renderings_are_the_same_in_a_process_that_may_be_killed(
    shared_data: Path, processes: TemplateProcesses
) -> None:
    folder = shared_data / TEMPLATES
    goldens = json.loads((folder / "vectors/transformers_golden.json").read_text())["vectors"]
    for golden in goldens[::10]:
        variables = golden_context(folder, golden)
        assert golden["expected"] == processes.render(
            template_of(folder, golden["template_file"]),
            variables.pop("messages"),
            add_generation_prompt=variables.pop("add_generation_prompt", False),
            bos_token=variables.pop("bos_token", ""),
            eos_token=variables.pop("eos_token", ""),
            now=NOON,
            variables=variables,
        )


def test_a_template_that_hangs_is_killed_and_the_others_go_on() -> None:
    processes = TemplateProcesses(render_s=1.0)
    # Single operations that take long, each within every other limit.
    hanging = ChatTemplate(
        "{% for i in range(9999) %}{% set x = range(99999) | sort | unique | list %}{% endfor %}"
    )
    greeting = ChatTemplate("Hello {{ messages[0].content }}")
    messages = [{"role": "user", "content": "Ann"}]
    refusals: list[str] = []

    def hang() -> None:
        with pytest.raises(InvalidRequest) as refusal:
            processes.render(hanging, messages)
        refusals.append(refusal.value.message)

    threads = [threading.Thread(target=hang) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert processes.render(greeting, messages) == "Hello Ann"
    for thread in threads:
        thread.join()
    assert len(refusals) == 3
    assert all("more than 1 seconds" in refusal for refusal in refusals)
    assert processes.render(greeting, messages) == "Hello Ann"
    processes.close()


def test_a_process_that_somebody_else_killed_is_replaced_unseen() -> None:
    processes = TemplateProcesses()
    template = ChatTemplate("Hello {{ messages[0].content }}")
    messages = [{"role": "user", "content": "Ann"}]
    assert processes.render(template, messages) == "Hello Ann"
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    ours = [one for one in children if b"template_child" in Path(f"/proc/{one}/cmdline").read_bytes()]
    assert ours
    for child in ours:
        os.kill(int(child), signal.SIGKILL)
    assert processes.render(template, messages) == "Hello Ann"
    processes.close()


def test_a_template_refuses_in_its_own_words_from_its_process(processes: TemplateProcesses) -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as refusal:
        processes.render(ChatTemplate("{{ raise_exception('roles must alternate') }}"), [])
    assert refusal.value.param == "messages"


DIFFERENT_FROM_HUGGINGFACE_JS = {
    # We follow Transformers where huggingface.js differs from it.
    "custom/MadeAgents/Hammer2.1": "prints a dictionary, which Python spells with single quotes",
    "custom/HuggingFaceTB/SmolLM3-3B": "prints the date, which is the goldens' and not the example's",
    "custom/ai21labs/AI21-Jamba-Large-1.6": "leaves add_generation_prompt undefined; Transformers never does",
}


def test_huggingface_js_examples_are_reproduced(shared_data: Path) -> None:
    examples = json.loads((shared_data / TEMPLATES / "vectors/hfjs_e2e.json").read_text())
    different = {
        example["id"]
        for example in examples
        if render(ChatTemplate(example["template"]), example["context"]) != example["expected"]
    }
    assert len(examples) == 53
    assert different == DIFFERENT_FROM_HUGGINGFACE_JS.keys()


def test_generation_blocks_print_their_content() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}"
    )
    assert template.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]) == "a|b|"


def test_the_date_is_undefined_unless_it_is_passed_in() -> None:
    template = ChatTemplate(
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}no date{% endif %}"
    )
    assert template.render([]) == "no date"
    assert template.render([], now=NOON) == "26 Jul 2024"


def test_a_template_raises_with_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template.render([])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for m in messages %}", "line 1"),
        ("\n\n{{ m | nonsense }}", "line 3"),
        ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "cannot be compiled"),
        ("{% if 1 %}" * 200 + "{% endif %}" * 200, "cannot be compiled"),
        ("x" * 1_000_001, "longer than"),
    ],
)
def test_a_template_that_is_no_template_is_rejected(source: str, said: str) -> None:
    with pytest.raises(ModelRejected, match=said):
        ChatTemplate(source)


HOSTILE = {
    "endless loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "doubling text": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "adding text": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "multiplying text": "{{ 'x' * 10000000000 }}",
    "multiplying lists": "{{ ([1] * 100000000) | length }}",
    "doubling structure": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "huge powers": "{{ 9 ** (9 ** 9) }}",
    "huge products": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "padding": "{{ 'x'.ljust(10000000000) }}",
    "zero filling": "{{ '1'.zfill(10000000000) }}",
    "bytes of a number": "{{ (1).to_bytes(10000000000, 'big') }}",
    "format width": "{{ '{:10000000000}'.format(1) }}",
    "nested format width": "{{ '{:{}}'.format(1, 10000000000) }}",
    "percent width": "{{ '%10000000000d' % 1 }}",
    "format filter width": "{{ '%10000000000d' | format(1) }}",
    "indent filter": "{{ 'a' | indent(10000000000, true) }}",
    "join filter": "{{ range(99999) | join('x' * 4000) }}",
    "replace filter": "{{ ('a' * 4000) | replace('a', 'b' * 4000) }}",
    "replace method": "{{ ('a' * 4000).replace('a', 'b' * 4000) }}",
    "join method": "{{ ('x' * 4000).join(['a'] * 4000) }}",
    "json indent": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "long output": "{% for a in range(9999) %}" + "y" * 1000 + "{% endfor %}",
    "long captured output": "{% set x %}{% for a in range(9999) %}" + "y" * 1000 + "{% endfor %}{% endset %}",
    "summing lists": "{{ [[1]] | sum(start=[]) }}",
    "dates that pad": "{{ strftime_now('%1000000000Y') }}",
    "attributes of types": "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attributes by filter": "{{ messages | map(attribute='__class__.__init__.__globals__') | list }}",
    "changing messages": "{{ messages.append(1) }}",
    "memory addresses": "{{ messages.copy }}",
    "random": "{{ lipsum() }}",
    "doubling by a call": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}"
    "{% endfor %}{{ ns.x == ns.x }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped(name: str) -> None:
    template = ChatTemplate(HOSTILE[name])
    with pytest.raises(InvalidRequest) as refusal:
        template.render([{"role": "user", "content": "hi"}], now=NOON)
    assert len(refusal.value.message) < 400


def test_random_filters_do_not_exist() -> None:
    with pytest.raises(ModelRejected, match="random"):
        ChatTemplate("{{ [1, 2] | random }}")


def test_a_long_conversation_is_within_the_limits() -> None:
    template = ChatTemplate("{% for m in messages %}{{ '<' ~ m.role ~ '>' + m.content | trim }}{% endfor %}")
    messages = [{"role": "user", "content": "x" * 500}] * 2_000
    assert len(template.render(messages)) == 2_000 * 506


def test_threads_render_one_template_apart() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    results: dict[int, str] = {}

    def work(index: int) -> None:
        results[index] = template.render([{"role": "user", "content": str(index)}] * 200)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {index: str(index) * 200 for index in range(8)}


def test_the_plain_template_joins_contents_by_blank_lines() -> None:
    messages = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}]
    assert PlainTemplate().render(messages) == "One.\n\nTwo."
    assert PlainTemplate().digest is None
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content"):
        PlainTemplate().render([{"role": "user", "content": None}])
