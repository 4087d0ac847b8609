"""Bring the pages' catalogs up to date with what templates and code say.

    python tools/catalogs.py            write `src/tiltyard/web/catalogs/*.po` anew; say what wants translating
    python tools/catalogs.py --check    change nothing; exit status 1 when something is missing or out of date

A new text gets an empty translation for a person to fill in; one that nobody says any more is dropped. Nothing is
compiled: the pages read the `.po` files themselves. A catalog in which a merge left conflicts is taken with both sides' texts,
so after such a merge this is all there is to do.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent / "src" / "tiltyard"
CATALOGS = ROOT / "web" / "catalogs"
KEYWORDS = {"_": None, "gettext": None, "ngettext": (1, 2), "to_tell": None}
"""`to_tell` marks words of rooms below the pages, which know no languages."""
METHODS = [("web/templates/**.html", "jinja2"), ("web/**.py", "python"), ("arena/**.py", "python")]
OPTIONS = {"web/templates/**.html": {"trimmed": "true", "newstyle_gettext": "true"}}


def extracted() -> Catalog:
    """Every text that a page can say."""
    catalog = Catalog(charset="utf-8")
    for _, _, message, _, context in extract_from_dir(
        ROOT, METHODS, OPTIONS, keywords=KEYWORDS, directory_filter=lambda name: "__" not in name
    ):
        catalog.add(message, context=context)
    return catalog


def faults(path: Path, wanted: Catalog) -> list[str]:
    """What keeps a catalog from being whole and current, in words."""
    with path.open("rb") as stream:
        held = read_po(stream, locale=path.stem.replace("-", "_"))
    found = [f"{path.name}: not in it: {m.id!r}" for m in wanted if m.id and m.id not in held]
    found += [f"{path.name}: nobody says it: {m.id!r}" for m in held if m.id and m.id not in wanted]
    for message in held:
        strings = message.string if isinstance(message.string, tuple) else (message.string,)
        if message.id and (message.fuzzy or not all(strings)):
            found.append(f"{path.name}: not translated: {message.id!r}")
        found += [f"{path.name}: {error}: {message.id!r}" for error in message.check(held)]
    return found


def updated(path: Path, wanted: Catalog) -> bytes:
    """The catalog's text with what is wanted and nothing else, in the order of the English words."""
    fresh = Catalog(locale=path.stem.replace("-", "_"), charset="utf-8")
    held = Catalog(locale=fresh.locale)
    if path.exists():
        whole = re.sub(rb"(?m)^(?:<{7}|={7}|>{7}|\|{7}).*\n", b"", path.read_bytes())
        held = read_po(io.BytesIO(whole), locale=fresh.locale)
    for message in wanted:
        if message.id:
            known = held.get(message.id)
            fresh.add(message.id, known.string if known is not None else None)
    written = io.BytesIO()
    write_po(written, fresh, width=0, omit_header=True, sort_output=True, no_location=True)
    header = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=utf-8\\n"\n'
        f'"Language: {path.stem}\\n"\n"Plural-Forms: nplurals=1; plural=0;\\n"\n\n'
    )
    return header.encode() + written.getvalue().lstrip()


def main(arguments: list[str]) -> int:
    """Write or check all catalogs."""
    wanted = extracted()
    paths = sorted(CATALOGS.glob("*.po"))
    if "--check" not in arguments:
        for path in paths:
            path.write_bytes(updated(path, wanted))
    found = [fault for path in paths for fault in faults(path, wanted)]
    print("\n".join(found) or "the catalogs are whole and current")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
