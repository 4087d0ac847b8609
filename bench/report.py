"""Measure everything and write docs/performance.md: `make bench`, or `make bench ARGS="--only peers sessions"`.

Each section of that page between `<!-- begin NAME -->` and `<!-- end NAME -->` is what one script of this folder
printed, with the environment and the time below it. A script prints Markdown to stdout and its progress to stderr.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from environment import ROOT, default_model, environment

PAGE = ROOT / "docs" / "performance.md"
HERE = Path(__file__).parent
SCRIPTS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "peers": (True, ("peers.py", "--repetitions", "2")),
    "kernels": (False, ("-m", "tiltyard.cli.main", "bench", "kernels")),
    "overhead": (False, ("step_overhead.py", "MODEL")),
    "sessions": (True, ("sessions.py",)),
    "speculation": (False, ("speculation.py", "MODEL")),
    "weights": (True, ("weights.py",)),
    "memory": (True, ("memory.py",)),
    "scheduling": (True, ("scheduling.py",)),
    "routing": (True, ("routing.py", "--plot", "docs/images/routing.svg")),
    "planner": (True, ("planner.py",)),
    "planner-speed": (True, ("planner_speed.py",)),
    "experts": (True, ("experts.py",)),
    "programs": (True, ("programs.py",)),
    "gateway": (True, ("gateway_overhead.py",)),
    "tracing": (True, ("tracing_overhead.py",)),
    "streams": (True, ("open_streams.py",)),
    "cold-start": (False, ("cold_start.py", "MODEL")),
}
"""Section: does it print Markdown, and how it is run (`MODEL`: the file of the shipped settings)."""


def measured(name: str) -> str:
    """Run one script; what it printed, with its environment."""
    began = time.monotonic()
    markdown, words = SCRIPTS[name]
    if words[0].endswith(".py"):
        words = (str(HERE / words[0]), *words[1:])
    words = tuple(str(default_model()) if word == "MODEL" else word for word in words)
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    printed = done.stdout.rstrip() if markdown else f"```text\n{done.stdout.rstrip()}\n```"
    minutes = (time.monotonic() - began) / 60
    day = time.strftime("%d %B %Y")
    return f"{printed}\n\n*{day}, {minutes:.1f} minutes: {environment()}*\n"


def replaced(page: str, name: str, text: str) -> str:
    """The page with a section's text replaced; raises `ValueError` if the page has no such section."""
    section = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not section.search(page):
        raise ValueError(f"{PAGE} has no section {name!r}")
    return section.sub(lambda found: f"{found[1]}{text}{found[2]}", page)


def main() -> None:
    """Measure the sections asked for, one after another, writing each when it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    arguments = parser.parse_args()
    for number, name in enumerate(arguments.only, 1):
        print(f"[{number}/{len(arguments.only)}] {name}", file=sys.stderr, flush=True)
        text = measured(name)
        print(text, flush=True)
        PAGE.write_text(replaced(PAGE.read_text(), name, text))
    print(f"written to {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
