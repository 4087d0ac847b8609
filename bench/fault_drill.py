"""The fault drill: real processes are killed, stopped, cut off and starved under load; what clients see is checked and timed.

    python bench/fault_drill.py [--only NAME]

Two gateways (`tiltyard serve`) behind a plain TCP balancer, on one PostgreSQL and one Redis; the first has two workers with the real
SmolLM2-135M, the second has one, and both share another one that is behind a network which can be cut. Clients stream greedy answers all the time. After each
fault:

- every answer that a client saw whole is in the log, once, and its words are those of an undisturbed run;
- a stream that was not whole ended with an error frame (or, where the gateway itself died, without `[DONE]`);
- nobody's request was answered and sent again: one event for each generation, no words twice;
- at the end nothing is reserved, what was billed is what is recorded, and `tiltyard events verify` finds no fault.

Two times are printed: until a request that was begun after the fault is answered, and until every worker is back.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from drill_yard import Seen, Yard, ask, until, yard_on
from tiltyard.events.schema import GenerationFinished
from tiltyard.router.redis_ledger import RedisLedger
from tiltyard.router.tenants import TenantTerms

CLIENTS = 4
SHORT = (
    "Say hello.",
    "Count to five.",
    "Name a colour.",
    "What is a river?",
    "Why is the sky blue?",
    "Write a line.",
)
LONG = tuple(f"{n}: " + "the quick brown fox jumps over the lazy dog and " * 150 for n in range(6))


Fault = Callable[[Yard], Awaitable[None]]


async def kill_worker(yard: Yard) -> None:
    """kill -9 of a worker that has something to do."""
    await yard.until_busy("m")
    await yard.until_another(signal.SIGKILL)


async def stop_worker(yard: Yard) -> None:
    """SIGSTOP: it lives, keeps its connections open and does nothing."""
    await yard.until_busy("m")
    await yard.until_another(signal.SIGSTOP)


async def fill_disk(yard: Yard) -> None:
    """No file of the worker may grow any more: log, spill, cache. Lifted after five seconds."""
    pid = yard.first.pid("m")
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    await asyncio.sleep(5)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def cut_network(yard: Yard) -> None:
    """The network to the far worker loses everything for 20 seconds and tells nobody."""
    yard.far.cut()

    async def mend() -> None:
        await asyncio.sleep(20)
        yard.far.mend()

    _mending.add(task := asyncio.create_task(mend()))
    task.add_done_callback(_mending.discard)

    async def noticed() -> bool:
        return not (await yard.first.fleet(yard.http))["far"]["alive"]

    await until(noticed)


async def kill_gateway(yard: Yard) -> None:
    """kill -9 of the gateway with the workers, which end with it; it is started again after that."""
    process = yard.first.process
    if process is None:
        raise RuntimeError("the gateway does not run")
    process.kill()
    process.wait()
    await asyncio.sleep(3)
    await yard.first.start()


async def stop_postgres(yard: Yard) -> None:
    """The database stops at once, as if its power failed, and is back after five seconds."""
    await asyncio.to_thread(yard.postgres.stop)
    await asyncio.sleep(5)
    await asyncio.to_thread(yard.postgres.start)


_mending: set[asyncio.Task[None]] = set()
FAULTS: dict[str, tuple[Fault, tuple[str, ...], int]] = {
    "kill -9 a worker in prefill": (kill_worker, LONG, 4),
    "kill -9 a worker in decode": (kill_worker, SHORT, 96),
    "SIGSTOP a worker": (stop_worker, SHORT, 96),
    "fill a worker's disk": (fill_disk, SHORT, 48),
    "cut the network to a worker": (cut_network, SHORT, 48),
    "kill -9 a gateway": (kill_gateway, SHORT, 48),
    "stop PostgreSQL, start it": (stop_postgres, SHORT, 48),
}


@dataclass
class Row:
    """One line of the table."""

    fault: str
    again_s: float
    whole_s: float
    longest_s: float
    ends: Counter[str]
    faults: list[str]


async def drill(yard: Yard, name: str) -> Row:
    """Let one fault happen under load, and look at what became of everything."""
    fault, prompts, max_tokens = FAULTS[name]
    for prompt in prompts:
        if (prompt, max_tokens) not in _references:
            undisturbed = await ask(yard.http, yard.door.url, prompt, max_tokens)
            if not undisturbed.whole:
                raise RuntimeError(f"{name}: not even an undisturbed request is answered: {undisturbed.kind}")
            _references[prompt, max_tokens] = undisturbed.text
    after, seen, ending = yard.log.last_sequence(), [], asyncio.Event()  # type: ignore[var-annotated]

    async def client(number: int) -> None:
        turn = number
        while not ending.is_set():
            told = await ask(yard.http, yard.door.url, prompts[turn % len(prompts)], max_tokens)
            seen.append(told)
            turn += 1
            if not told.whole:
                await asyncio.sleep(0.2)  # as clients do who are told to come back

    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    await asyncio.sleep(2)
    began_s = time.monotonic()
    await fault(yard)
    await yard.until_whole()
    whole_s = time.monotonic() - began_s

    async def again() -> bool:
        return any(one.whole and one.began_s > began_s for one in seen)

    await until(again)
    await asyncio.sleep(2)
    ending.set()
    await asyncio.gather(*clients)
    disturbed = [one for one in seen if one.ended_s > began_s]
    again_s = min(one.ended_s for one in disturbed if one.whole and one.began_s > began_s) - began_s
    return Row(
        name,
        again_s,
        whole_s,
        max(one.ended_s - one.began_s for one in disturbed),
        Counter(one.kind for one in disturbed),
        await wrong(yard, seen, after, max_tokens),
    )


_references: dict[tuple[str, int], str] = {}


async def wrong(yard: Yard, seen: list[Seen], after: int, max_tokens: int) -> list[str]:
    """What should not have been."""
    found = []
    events = [e.data for e in yard.log.read(after=after, types=(GenerationFinished,))]
    recorded: Counter[str] = Counter(e.generation for e in events if isinstance(e, GenerationFinished))
    ends = {e.generation: e for e in events if isinstance(e, GenerationFinished)}
    found += [f"{name} has {count} events" for name, count in recorded.items() if count > 1]
    if len(recorded) > len(seen):
        found.append(f"{len(recorded)} generations for {len(seen)} requests")
    for one in seen:
        reference = _references[one.prompt, max_tokens]
        event = ends.get(one.generation or "")
        if one.whole and (event is None or event.error is not None):
            found.append(f"{one.generation} was answered and is not in the log")
        if one.whole and one.text != reference:
            found.append(f"{one.generation} has other words than an undisturbed run")
        if not reference.startswith(one.text):
            found.append(f"{one.generation} told words twice, or others: {one.text[:80]!r}")
        # A gateway that is killed between the append and the last frame has told nobody how it ended.
        if one.code is not None and event is not None and event.error is None:
            found.append(f"{one.generation} is in the log as answered and was not")
    for gateway in yard.gateways:
        fleet = await gateway.fleet(yard.http)
        left = sum(int(str(worker["unfinished_tokens"])) for worker in fleet.values())
        if left:
            found.append(f"{gateway.url} counts {left} unfinished tokens of nobody")
    return found


async def run(only: str | None, home: Path) -> list[Row]:
    """Every fault, or one."""
    rows = []
    async with yard_on(home) as yard:
        for name in FAULTS:
            if only is None or only in name:
                row = await drill(yard, name)
                rows.append(row)
                print(shown(row), flush=True)
        print(await books(yard), flush=True)
        report = yard.log.verify()
        print(f"events verify: {report.events:,} events, {report.fault or 'no fault'}")
        report.raise_if_faulty()
    return rows


async def books(yard: Yard) -> str:
    """Wait until nothing is held, those that a dead gateway held included; then what was billed is what is recorded."""
    ledger = RedisLedger(yard.redis)
    terms = TenantTerms(prompt_price=1.0, output_price=1.0)

    async def settled() -> bool:
        account = await ledger.account("default")
        return (account.in_flight, account.reserved_nano) == (0, 0)

    await until(settled, 0.5)
    billed = (await ledger.account("default")).month_nano
    await ledger.aclose()
    events = (event.data for event in yard.log.read(types=(GenerationFinished,)))
    recorded = sum(
        terms.cost_nano(event.prompt_tokens, event.completion_tokens)
        for event in events
        if isinstance(event, GenerationFinished)
    )
    return f"nothing reserved; billed {billed / 1e9:.6f}, recorded {recorded / 1e9:.6f}"


def shown(row: Row) -> str:
    """One line of the table, and what was wrong."""
    ends = ", ".join(f"{count} {kind}" for kind, count in row.ends.most_common())
    line = f"| {row.fault} | {row.again_s:.1f} s | {row.whole_s:.1f} s | {row.longest_s:.1f} s | {ends} | {'none' if not row.faults else len(row.faults)} |"
    return "\n".join([line, *(f"    WRONG: {fault}" for fault in row.faults[:10])])


def main() -> None:
    """Run the drill and end with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="faults whose name has this in it")
    options = parser.parse_args()
    print(
        "| fault | answers again | whole again | longest answer | how requests ended from then on | wrong |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="tiltyard-drill-") as name:
        rows = asyncio.run(run(options.only, Path(name)))
    raise SystemExit(any(row.faults for row in rows))


if __name__ == "__main__":
    main()
