"""A call to an edge and back, against a bare MQTT round trip on the same broker in the same run.

The orchestrator is this process, the edge another one with a tool that does nothing; the broker is
a third. Measured with one call at a time and with 64: the bare client, the protocol with stores
that are not synced, the protocol as it is, and how often the disk takes a commit. With `--peers`
also aiomqtt, another bare client, and a call through the MCP SDK over HTTP. The last line is the
result as JSON.
"""

import argparse
import asyncio
import json
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from statistics import median

from bench.fleet import mcp_roundtrip
from bench.fleet.bare_client import Bare, connected
from bench.fleet.profiling import profile
from bench.suite.subjects import CannotMeasure, peer
from tests.support.light_edges import do_nothing

from evoclaw.core.tools import Call
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.address import Address
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.mqtt import MqttLink

MANY = 64
MOST_RATIO, LEAST_GAIN = 2.0, 5.0
BODY = 500
"""Bytes, about what a command or a report of such a call has."""

Trip = Callable[[], Awaitable[object]]
Pace = tuple[float, float]
"""Round trips a second, and microseconds of this process's work for each."""


@contextmanager
def far_side(*arguments: str):
    """The other process, while the block runs."""
    process = subprocess.Popen([sys.executable, "-m", "bench.fleet.echo_process", *arguments])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


async def rate(trip: Trip, at_once: int, seconds: float) -> Pace:
    """How fast it goes with so many in flight."""
    loop = asyncio.get_running_loop()
    done = 0

    async def one(end: float) -> None:
        nonlocal done
        while loop.time() < end:
            await trip()
            done += 1

    async def all_of_them(span: float) -> Pace:
        nonlocal done
        done, began, worked = 0, loop.time(), time.process_time()
        async with asyncio.timeout(span + 30), asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(one(began + span))
        work = time.process_time() - worked
        return done / (loop.time() - began), 1e6 * work / done

    await all_of_them(min(0.3, seconds))
    return await all_of_them(seconds)


async def bare(port: int, seconds: float) -> tuple[Pace, Pace]:
    """The floor."""
    with far_side("bare", str(port)):
        async with connected("asks", port) as client:
            here = Bare(client, b"x" * BODY)
            await _answered(here.trip)
            return await rate(here.trip, 1, seconds), await rate(here.trip, MANY, seconds)


async def _answered(trip: Trip) -> None:
    """Wait until the far side is there; what nobody heard is given up."""
    for _ in range(100):
        try:
            async with asyncio.timeout(0.2):
                return await trip()
        except TimeoutError:
            continue
    raise SystemExit("nobody answers")


@asynccontextmanager
async def calling(port: int, folder: Path, durable: bool) -> AsyncGenerator[Trip]:
    """A way to make a call on the edge."""
    async with await CommandStore.open(folder / "orchestrator.db", durable=durable) as store:
        orchestrator = Orchestrator(MqttLink(Address("127.0.0.1", port)), store)
        async with orchestrator.connected():
            await orchestrator.wait_for("pi", 30)
            executor, tool = orchestrator.edge("pi"), do_nothing.tool
            run, turn = secrets.token_hex(16), 0

            async def trip() -> None:
                nonlocal turn
                turn += 1
                call = Call("c", tool, {}, f"{run}.{turn}.0.1", tool.timeout)
                result = await executor.execute(call, lambda text: None)
                assert result.error is None, result

            yield trip


async def protocol(port: int, durable: bool, seconds: float) -> tuple[Pace, Pace]:
    """Ours, with or without waiting for the disk."""
    how = "durable" if durable else "fast"
    with (
        tempfile.TemporaryDirectory(prefix="roundtrip-") as name,
        far_side("edge", str(port), name, how),
    ):
        async with calling(port, Path(name), durable) as trip:
            return await rate(trip, 1, seconds), await rate(trip, MANY, seconds)


async def through_aiomqtt(port: int, seconds: float) -> tuple[Pace, Pace]:
    """Another bare client, in an environment and two processes of its own."""
    said = await asyncio.to_thread(peer("aiomqtt").measure, str(port), str(seconds))
    found = json.loads(said)
    return (found["one"], found["one_us"]), (found["many"], found["many_us"])


async def through_mcp(seconds: float) -> tuple[Pace, Pace]:
    """The way of others."""
    async with mcp_roundtrip.calling() as trip:
        return await rate(trip, 1, seconds), await rate(trip, MANY, seconds)


def commits(seconds: float) -> float:
    """How often a second the disk takes one row, as SQLite does it."""
    with (
        tempfile.TemporaryDirectory(prefix="roundtrip-") as name,
        closing(sqlite3.connect(Path(name) / "floor.db", isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE rows (value BLOB)")
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            database.execute("INSERT INTO rows VALUES (?)", (b"x" * BODY,))
            done += 1
        return done / (time.perf_counter() - began)


async def measure(engine: str, rounds: int, seconds: float, peers: bool) -> dict[str, list[float]]:
    """All of it, one after the other, some times."""
    found: dict[str, list[float]] = {}

    def note(name: str, pair: tuple[Pace, Pace]) -> None:
        for at_once, (pace, work) in zip((1, MANY), pair, strict=True):
            found.setdefault(f"{name}_{at_once}_per_s", []).append(pace)
            found.setdefault(f"{name}_{at_once}_work_us", []).append(work)

    with tempfile.TemporaryDirectory(prefix="roundtrip-") as name:
        async with EmbeddedBroker(name, engine=engine, anonymous=True) as broker:
            for number in range(rounds):
                note("bare", await bare(broker.port, seconds))
                note("fast", await protocol(broker.port, False, seconds))
                note("durable", await protocol(broker.port, True, seconds))
                if peers:
                    note("mcp", await through_mcp(seconds))
                    try:
                        note("aiomqtt", await through_aiomqtt(broker.port, seconds))
                    except CannotMeasure as problem:
                        print(f"aiomqtt: {problem}", file=sys.stderr, flush=True)
                found.setdefault("commits_per_s", []).append(commits(seconds / 2))
                print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def report(found: dict[str, list[float]]) -> int:
    """Say it; the exit code."""
    for name, values in found.items():
        shown = " ".join(f"{value:8.0f}" for value in values)
        print(f"{name:20} {shown}   median {median(values):.0f}")
    figures: dict[str, float] = {name: round(median(values)) for name, values in found.items()}
    figures |= {
        "fast_to_bare_1": round(figures["bare_1_per_s"] / figures["fast_1_per_s"], 2),
        f"fast_to_bare_{MANY}": round(
            figures[f"bare_{MANY}_per_s"] / figures[f"fast_{MANY}_per_s"], 2
        ),
        "durable_ms_1": round(1000 / figures["durable_1_per_s"], 2),
        "commit_ms": round(1000 / figures["commits_per_s"], 2),
        "durable_gain": round(figures[f"durable_{MANY}_per_s"] / figures["durable_1_per_s"], 2),
    }
    met = figures["fast_to_bare_1"] <= MOST_RATIO and figures["durable_gain"] >= LEAST_GAIN
    figures["met"] = met
    print(json.dumps(figures), flush=True)
    return int(not met)


async def profiled(engine: str, at_once: int, seconds: float) -> None:
    """Say where the two processes spend their time; the far side says it when it ends."""
    with tempfile.TemporaryDirectory(prefix="roundtrip-") as name:
        async with EmbeddedBroker(name, engine=engine, anonymous=True) as broker:
            with far_side("edge", str(broker.port), name, "profiled"):
                async with calling(broker.port, Path(name), False) as trip:
                    await rate(trip, at_once, 0.3)
                    with profile(f"the orchestrator, {at_once} at once"):
                        await rate(trip, at_once, seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure of a round")
    parser.add_argument("--peers", action="store_true", help="aiomqtt and the MCP SDK, too")
    parser.add_argument("--profile", type=int, metavar="N", help="instead: where N spend it")
    options = parser.parse_args()
    if options.profile:
        return asyncio.run(profiled(options.engine, options.profile, options.seconds))
    found = asyncio.run(measure(options.engine, options.rounds, options.seconds, options.peers))
    sys.exit(report(found))


if __name__ == "__main__":
    main()
