"""A gateway in a process of its own: `python gateway_process.py DIRECTORY`; where its state is stands in the environment."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import uvicorn

from tiltyard.events.log import EventLog
from tiltyard.events.places import keys_in, log_in
from tiltyard.fleet.membership import Membership
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.connection import CarefulConnection, CarefulSocket
from tiltyard.router.redis_ledger import RedisLedger
from tiltyard.router.router import Router

ALIASES = {"chat": "plain"}


async def main(directory: Path) -> None:
    with EventLog.open(log_in(directory), keys=keys_in(directory)) as log:
        registry = Registry()
        membership = Membership(registry)
        membership.look(log)
        await registry.refresh()
        app = create_gateway(
            router=Router(registry, ALIASES), log=log, ledger=RedisLedger(os.environ["TILTYARD_LIMITS_URL"])
        )
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=CarefulConnection, ws=CarefulSocket, log_level="warning")
        watching = [asyncio.create_task(registry.watch(0.1)), asyncio.create_task(membership.watch(log))]
        temporary = directory / "ready.part"
        temporary.write_text(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}))
        temporary.replace(directory / "ready")
        await uvicorn.Server(config).serve(sockets=[listener])
        for task in watching:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
