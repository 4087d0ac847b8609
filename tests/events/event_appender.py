"""Run by tests as a process of its own: appends votes (and words) for ever and prints what was acknowledged.

`event_appender.py DATA NAME APPENDERS LIMIT`; one line for each acknowledged event: `vote BATTLE ID` or
`words BATTLE REF-AS-JSON`; `refused BATTLE` when another process was first; `failed MESSAGE` when the
disk refused.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

from event_samples import SOURCE, turn, vote

from tiltyard.errors import Conflict, StorageFailed
from tiltyard.events.log import EventLog


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(data: Path, name: str, appenders: int, limit: int) -> None:
    log = EventLog.open(data / "log.db", keys=data / "keys.db")
    numbers = count() if limit == 0 else iter(range(limit))

    async def append() -> None:
        for n in numbers:
            battle = f"bat_{name}_{n}"
            try:
                stored = await log.append(vote(battle), subject=battle, source=SOURCE)
                say(f"vote {battle} {stored.id}")
                words = log.content(f"voter-{name}-{n % 5}", battle.encode())
                await log.append(turn(battle, 0, words.ref), subject=battle, source=SOURCE, contents=[words])
                say(f"words {battle} {words.ref.model_dump_json()}")
            except Conflict:
                say(f"refused {battle}")
            except StorageFailed as error:
                say(f"failed {error.message}")
                return

    say("ready")
    await asyncio.gather(*(append() for _ in range(appenders)))
    log.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
