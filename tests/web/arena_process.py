"""An arena in a process of its own, so that a test can kill it: `python arena_process.py DATA_DIRECTORY`.

Prints its address, then serves until it is killed. A question with "hold" in it is never answered to the end.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from arena_standin import Gate, StandIn, default_answer, entrant, serving

from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.web.app import create_web

CONTESTANTS = [entrant(name) for name in ("quillon-cold", "quillon-warm", "vamplate-raw")]


def main(data: Path) -> None:
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        models = StandIn(log, {one.name: one.behaviour for one in CONTESTANTS})
        for one in CONTESTANTS:

            def answer(messages: list[dict[str, str]], name: str = one.name) -> list[str | Gate]:
                held: list[str | Gate] = ["so far ", Gate()]
                return held if "hold" in messages[-1]["content"] else list(default_answer(name)(messages))

            models.answers[one.name] = answer
        with serving(models.app()) as models_url:
            web = create_web(log=log, client=ModelClient(models_url), contestants=CONTESTANTS)
            with serving(web) as url:
                print(url, flush=True)
                threading.Event().wait()


main(Path(sys.argv[1]))
