"""The dataset card, made of the manifest alone: YAML that the Hub reads, then Markdown that people read.

Every word that came from a file or a person is escaped: a model's name makes no link, no picture and no row of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import yaml

from tiltyard.events.schema import Layout
from tiltyard.governance.datasets.columns import Column
from tiltyard.governance.datasets.files import PATHS, features
from tiltyard.governance.datasets.languages import language_name
from tiltyard.governance.datasets.manifest import Manifest
from tiltyard.governance.datasets.plan import ARENA, TENANT, Form
from tiltyard.identity.canonical import Json
from tiltyard.rating.language import UNDECIDED
from tiltyard.wire.escaping import for_markdown, one_line

_SIZES: Final = (
    (1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"),
)  # fmt: skip
_TASKS: Final[Mapping[Layout, Sequence[str]]] = {
    "conversations": ("text-generation",),
    "preferences": ("text-classification", "text-generation"),
    "pairs": ("text-generation",),
}
_LAYOUTS: Final[Mapping[Layout, str]] = {
    "conversations": "One conversation with one model a row, in the fields of LMSYS-Chat-1M.",
    "preferences": "One vote a row: two conversations with two unnamed models and what the voter preferred, in the fields of LMArena's sets. "
    "Ties say which kind they are.",
    "pairs": "One preference a row: a prompt, the answer that the voter chose and the one that was rejected, as TRL's trainers read them. "
    "They have no place for ties; those were left out and are counted below.",
}
_SHOWN_MODELS: Final = 100
_REASONS: Final[Mapping[str, str]] = {
    "tie": "a tie",
    "both_bad": "a tie of the kind that both answers are bad",
    "names_were_shown": "the voter saw the models' names",
    "other_model": "a model that the plan does not name",
    "other_language": "another language",
    "other_category": "another kind of work",
    "other_turns": "fewer or more turns than the plan takes",
    "too_early": "before the window, or without a time",
    "too_late": "after the window, or without a time",
    "no_words": "no words were kept",
    "words_gone": "words were never kept",
    "content_erased": "the person was erased",
    "content_expired": "the words were kept for a time that is over",
    "purpose_not_allowed": "the person, or the source's terms, do not allow it",
    "histories_differ": "the two sides had different histories, so that no prompt is shared",
    "vote_withdrawn": "the voter took the vote back",
}
_KINDS: Final[Mapping[str, str]] = {
    "PHONE": "phone numbers", "EMAIL": "e-mail addresses", "CARD": "payment cards", "IBAN": "bank accounts",
    "NATIONAL_ID": "national ids", "IP_ADDRESS": "IP addresses", "MAC_ADDRESS": "MAC addresses",
    "URL_CREDENTIALS": "passwords in URLs", "SECRET": "keys and tokens", "PERSON": "names",
}  # fmt: skip


def card_of(manifest: Manifest) -> str:
    """Return `README.md`."""
    front = yaml.safe_dump(
        _front_matter(manifest), sort_keys=False, allow_unicode=True, width=110, default_flow_style=False
    )
    return f"---\n{front}---\n\n{body_of(manifest)}"


def body_of(manifest: Manifest) -> str:
    """Return the card without its front matter."""
    words = manifest.plan.card
    parts = [f"# {for_markdown(words.title or manifest.name)}"]
    if words.summary:
        parts.append(for_markdown_lines(words.summary))
    parts += [
        f"{_LAYOUTS[manifest.layout]} {manifest.rows:,} rows, version {manifest.version}, {for_markdown(manifest.licence)}.",
        _USE,
        "## How it was collected",
        _collection(manifest),
        "## What was left out",
        _left_out(manifest),
        "## Columns",
        _table(
            ("column", "type", "meaning"),
            ((f"`{one.name}`", one.kind, one.meaning) for one in manifest.columns),
        ),
        "## Languages",
        _languages(manifest),
        "## Models",
        _models(manifest),
    ]
    if manifest.winners:
        decided = sorted(manifest.winners.items())
        parts += ["## Outcomes", _table(("winner", "rows"), ((f"`{one}`", f"{n:,}") for one, n in decided))]
    parts += [
        "## People",
        _people(manifest),
        "## Known limits",
        "\n".join(f"- {one}" for one in _limits(manifest)),
        "## Taking a row out",
        _revocation(manifest),
        "## Where it comes from",
        _provenance(manifest),
    ]
    return "\n\n".join(parts) + "\n"


def for_markdown_lines(text: str) -> str:
    """Several paragraphs of plain text."""
    return "\n\n".join(
        for_markdown(" ".join(part.split())) for part in text.strip().split("\n\n") if part.strip()
    )


def _front_matter(manifest: Manifest) -> dict[str, Json]:
    columns = [Column(one.name, one.kind, one.meaning) for one in manifest.columns]
    tags = sorted(
        {
            tag.partition("-")[0]
            for tag in manifest.languages
            if tag != UNDECIDED and len(tag.partition("-")[0]) == 2
        }
    )
    # The Hub reads all configurations of a repository by one reader, so JSON lines beside Parquet are no configuration.
    form: Form = "parquet" if "parquet" in manifest.plan.files else "jsonl"
    return {
        "pretty_name": one_line(manifest.plan.card.title or manifest.name),
        "license": "other" if not _is_hub_licence(manifest.licence) else manifest.licence.lower(),
        **({} if _is_hub_licence(manifest.licence) else {"license_name": one_line(manifest.licence).lower()}),
        "language": tags or ["und"],
        "language_details": ", ".join(sorted(tag for tag in manifest.languages)),
        "size_categories": [next((name for size, name in _SIZES if manifest.rows < size), "n>10M")],
        "task_categories": list(_TASKS[manifest.layout]),
        "annotations_creators": ["crowdsourced"],
        "language_creators": ["crowdsourced", "machine-generated"],
        "source_datasets": ["original"]
        if all(source.source == ARENA or source.source.startswith(TENANT) for source in manifest.sources)
        else ["extended"],
        "tags": ["tiltyard", *(["human-feedback"] if _did(manifest) != "asked" else []), manifest.layout],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": PATHS[form]}]}],
        "dataset_info": {"config_name": "default", "features": features(columns)},
    }


_HUB_LICENCES: Final = frozenset(
    {"apache-2.0", "mit", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "odc-by", "odbl", "pddl"}
)  # fmt: skip


def _is_hub_licence(licence: str) -> bool:
    return licence.lower() in _HUB_LICENCES


_USE: Final = '```python\nfrom datasets import load_dataset\n\nrows = load_dataset("path/of/this/directory", split="train")\n```'


def _collection(manifest: Manifest) -> str:
    words = manifest.plan.card
    window = manifest.collected
    lines = []
    if window is None:
        lines.append(
            "- **Window:** not said: the rows have no times."
            if not _gone(manifest, "time")
            else "- **Window:** not said: times were left out so that no person can be told by them."
        )
    else:
        level = "second" if manifest.anonymity is None else manifest.anonymity.levels.get("time", "second")
        lines.append(
            f"- **Window:** {window.first} to {window.last} (times are rounded down to the {level})."
        )
    interface = words.interface or (
        "the arena of tiltyard: a person writes, two models answer side by side without their names, the person votes"
        if any(source.source == ARENA for source in manifest.sources)
        else "requests to the API of tiltyard"
        if _did(manifest) == "asked"
        else "not said by whoever released this"
    )
    lines.append(f"- **Interface:** {for_markdown(' '.join(interface.split()))}.")
    for source in manifest.sources:
        digests = f"; files {', '.join(f'`{one[:19]}…`' for one in source.files)}" if source.files else ""
        lines.append(f"- **Source:** {for_markdown(source.source)}, {for_markdown(source.licence)}{digests}.")
    lines.append(f"- **Filters:** {_filters(manifest)}")
    return "\n".join(lines)


def _filters(manifest: Manifest) -> str:
    where = manifest.plan.where
    said = []
    if voted := _did(manifest) != "asked":
        said.append(
            f"votes: {where.votes}" + (f" (`{manifest.ruleset}`)" if where.votes == "counting" else "")
        )
    for name, values in (
        ("languages", where.languages),
        ("models", where.models),
        ("categories", where.categories),
    ):
        if values is not None:
            said.append(f"{name}: {', '.join(for_markdown(one) for one in values)}")
    for name in ("since", "until", "turns_at_least", "turns_at_most"):
        if (value := getattr(where, name)) is not None:
            said.append(f"{name}: {value}")
    if voted:
        said.append("names hidden from the voter" if where.names_hidden else "names hidden or not")
    if (terms := manifest.plan.duplicates) is not None:
        said.append(f"at most {terms.keep} of the same {terms.by}")
    if (drawn := manifest.plan.sample) is not None:
        size = f"{drawn.rows:,} rows" if drawn.rows is not None else f"{drawn.each:,} of each stratum"
        strata = f" by {', '.join(drawn.by)}" if drawn.by else ""
        said.append(f"sample of {size}{strata}, seed {drawn.seed}")
    return "; ".join(said or ["none"]) + "."


def _left_out(manifest: Manifest) -> str:
    rows = [
        (_REASONS.get(reason, for_markdown(reason.replace("_", " "))), f"{count:,} records")
        for reason, count in sorted(manifest.left_out.items(), key=lambda one: (-one[1], one[0]))
    ]
    if manifest.plan.duplicates is not None:
        rows.append(("the same as another row", f"{manifest.duplicates:,} rows"))
    if manifest.plan.sample is not None:
        rows.append(("not drawn", f"{manifest.not_drawn:,} rows"))
    if manifest.anonymity is not None:
        rows.append(
            (f"shared by fewer than {manifest.anonymity.k} people", f"{manifest.anonymity.suppressed:,} rows")
        )
    return f"{manifest.records:,} records were read.\n\n" + _table(("why", "how many"), rows)


def _languages(manifest: Manifest) -> str:
    counted = sorted(manifest.languages.items(), key=lambda one: (-one[1], one[0]))
    return "Of the first message. `und`: nobody could tell.\n\n" + _table(
        ("language", "tag", "rows", "share"),
        (
            (
                for_markdown(language_name(tag)),
                f"`{for_markdown(tag)}`",
                f"{n:,}",
                f"{n / max(manifest.rows, 1):.1%}",
            )
            for tag, n in counted
        ),
    )


def _models(manifest: Manifest) -> str:
    counted = sorted(manifest.models.items(), key=lambda one: (-one[1], one[0]))
    table = _table(
        ("model", "appearances"), ((for_markdown(name), f"{n:,}") for name, n in counted[:_SHOWN_MODELS])
    )
    rest = len(counted) - _SHOWN_MODELS
    return table + (f"\n\nand {rest:,} more." if rest > 0 else "")


def _when(manifest: Manifest) -> str:
    """A tenant's own terms say whether its words are redacted before they are stored."""
    if any(source.source.startswith(TENANT) for source in manifest.sources):
        return "For this release"
    return "Before it was stored and again for this release"


def _did(manifest: Manifest) -> str:
    asked = [source.source.startswith(TENANT) for source in manifest.sources]
    return "asked" if all(asked) else "voted or asked" if any(asked) else "voted"


def _people(manifest: Manifest) -> str:
    said = [
        f"{manifest.people:,} people {_did(manifest)} in these rows"
        + (
            f"; of {manifest.rows_of_nobody_known:,} rows nobody knows who {_did(manifest)}."
            if manifest.rows_of_nobody_known
            else "."
        )
    ]
    found = manifest.redacted.found
    replaced = ", ".join(f"{count:,} {_KINDS.get(kind, kind)}" for kind, count in found.items())
    said.append(
        f"{_when(manifest)}, what names or unlocks a person was replaced by placeholders such as `[EMAIL_1]`: "
        f"{manifest.redacted.rows:,} rows have some; found this time: {replaced or 'nothing'}."
        if manifest.plan.words
        else "It holds no words of people."
    )
    if (done := manifest.anonymity) is None:
        said.append("Columns are as they were: no k-anonymity was asked for.")
    else:
        levels = ", ".join(f"{name} to the level *{level}*" for name, level in done.levels.items())
        changed = ", ".join(f"{name} in {count:,} rows" for name, count in done.generalised.items() if count)
        said.append(
            f"Every combination of {', '.join(done.levels)} is shared by at least {done.k} people (the smallest of {done.groups:,} groups has "
            f"{done.smallest:,}): {levels}. Made coarser: {changed or 'nothing'}; left out: {done.suppressed:,} rows."
        )
    said.append(
        "A voter's rows carry one pseudonym, which no other release shares."
        if manifest.plan.voters
        else "Nothing says which rows are of one voter."
    )
    return " ".join(said)


def _limits(manifest: Manifest) -> Iterable[str]:
    if manifest.plan.words:
        yield (
            "Redaction finds formats: names without a model, street addresses and whatever people tell of themselves in words stay. "
            "k-anonymity is about columns, not about texts."
        )
    if any(source.source.startswith(TENANT) for source in manifest.sources):
        yield "Each request is a row with its whole history, so the turns of one conversation of a tenant are several rows; a program may have written them."
    if _did(manifest) != "asked":
        yield "Whoever writes to an arena is no sample of anybody; prompts lean towards tests of models, English and code."
        yield "A vote says what one person preferred, not what is true."
    if manifest.plan.words:
        yield "Answers are those of machines and may be wrong or offensive. No moderation was run; nothing was removed for its content."
        yield "Texts are as people and models wrote them: treat them as untrusted wherever markup, formulas or control characters mean something."
    if manifest.languages.get(UNDECIDED) or manifest.languages.get("zh"):
        yield "Languages are guessed from the first message: `und` is undecided, `zh` is Chinese that is written alike in both scripts."
    if manifest.layout == "pairs":
        yield "Ties are missing, which makes differences between models look larger than they are."
    for one in manifest.plan.card.limits:
        yield for_markdown(" ".join(one.split()))


def _revocation(manifest: Manifest) -> str:
    contact = manifest.plan.card.contact
    asked = f" Ask {for_markdown(contact)}." if contact else ""
    return (
        "A person who is erased takes their rows along: the next version lacks them, and a revocation file for this one lists them by "
        f"digest (SHA-256 of the row in RFC 8785 JSON). Whoever holds a copy is asked to delete those.{asked}"
    )


def _provenance(manifest: Manifest) -> str:
    return (
        f"Made by tiltyard from its event log `{manifest.log}` up to event {manifest.position:,} ({manifest.as_of}). `manifest.json` names every file by "
        f"its digest, `signature.json` signs them (Ed25519, in-toto in DSSE), `lineage.jsonl` is OpenLineage, `plan.yaml` makes it again. "
        f"Rows: `{manifest.rows_digest}`."
    )


def _gone(manifest: Manifest, column: str) -> bool:
    return manifest.anonymity is not None and any(
        name == column and level == "gone" for name, level in manifest.anonymity.levels.items()
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)
