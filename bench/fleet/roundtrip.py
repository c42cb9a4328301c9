"""Round trip of an edge call, compared with a bare MQTT round trip on the same broker.

The orchestrator is this process, the edge is another one with a no-op tool, and the broker is a
third. Measured with one call at a time and with 64: the bare client, the protocol with stores that
are not synced, the durable protocol, and the rate of disk commits. `--peers` adds aiomqtt, another
bare client, and a call through the MCP SDK over HTTP. The last line is the result as JSON.
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
from bench.fleet.bare_client import BareRoundTrip, connected
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
MAX_RATIO, MIN_GAIN = 2.0, 5.0
BODY = 500
"""Bytes, about the size of a command or a report of such a call."""

Trip = Callable[[], Awaitable[object]]
Pace = tuple[float, float]
"""Round trips per second, and microseconds of this process's CPU time for each."""


@contextmanager
def remote_side(*arguments: str):
    """Run the remote process while the block runs."""
    process = subprocess.Popen([sys.executable, "-m", "bench.fleet.echo_process", *arguments])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


async def rate(trip: Trip, at_once: int, seconds: float) -> Pace:
    """The rate with `at_once` round trips in flight."""
    loop = asyncio.get_running_loop()
    done = 0

    async def repeat(end: float) -> None:
        nonlocal done
        while loop.time() < end:
            await trip()
            done += 1

    async def all_of_them(span: float) -> Pace:
        nonlocal done
        done, began, worked = 0, loop.time(), time.process_time()
        async with asyncio.timeout(span + 30), asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(repeat(began + span))
        work = time.process_time() - worked
        return done / (loop.time() - began), 1e6 * work / done

    await all_of_them(min(0.3, seconds))
    return await all_of_them(seconds)


async def bare(port: int, seconds: float) -> tuple[Pace, Pace]:
    """The floor."""
    with remote_side("bare", str(port)):
        async with connected("asks", port) as client:
            trip = BareRoundTrip(client, b"x" * BODY).trip
            await _wait_echo(trip)
            return await rate(trip, 1, seconds), await rate(trip, MANY, seconds)


async def _wait_echo(trip: Trip) -> None:
    """Wait until the remote side echoes; earlier messages are dropped."""
    for _ in range(100):
        try:
            async with asyncio.timeout(0.2):
                await trip()
                return
        except TimeoutError:
            continue
    raise SystemExit("the remote process did not echo within 20 s")


@asynccontextmanager
async def calling(port: int, folder: Path, durable: bool) -> AsyncGenerator[Trip]:
    """A function that calls the edge, as the service does: the file belongs to it alone."""
    path = folder / "orchestrator.db"
    async with await CommandStore.open(path, durable=durable, defer_outcomes=True) as store:
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
    """EvoClaw's protocol, with or without waiting for the disk."""
    how = "durable" if durable else "fast"
    with (
        tempfile.TemporaryDirectory(prefix="roundtrip-") as name,
        remote_side("edge", str(port), name, how),
    ):
        async with calling(port, Path(name), durable) as trip:
            return await rate(trip, 1, seconds), await rate(trip, MANY, seconds)


async def through_aiomqtt(port: int, seconds: float) -> tuple[Pace, Pace]:
    """Another bare client, in its own environment and two processes."""
    found = json.loads(await asyncio.to_thread(peer("aiomqtt").measure, str(port), str(seconds)))
    return (found["one"], found["one_us"]), (found["many"], found["many_us"])


async def through_mcp(seconds: float) -> tuple[Pace, Pace]:
    """A call through the MCP SDK over HTTP."""
    async with mcp_roundtrip.calling() as trip:
        return await rate(trip, 1, seconds), await rate(trip, MANY, seconds)


def commits(seconds: float) -> float:
    """Durable SQLite commits of one row per second."""
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
    """Measure all variants one after the other, for some rounds."""
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
    """Print the result; the exit code."""
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
    met = figures["fast_to_bare_1"] <= MAX_RATIO and figures["durable_gain"] >= MIN_GAIN
    figures["met"] = met
    print(json.dumps(figures), flush=True)
    return int(not met)


async def profiled(engine: str, at_once: int, seconds: float) -> None:
    """Print CPU profiles of both processes; the remote side prints its profile when it ends."""
    with tempfile.TemporaryDirectory(prefix="roundtrip-") as name:
        async with EmbeddedBroker(name, engine=engine, anonymous=True) as broker:
            with remote_side("edge", str(broker.port), name, "profiled"):
                async with calling(broker.port, Path(name), False) as trip:
                    await rate(trip, at_once, 0.3)
                    with profile(f"the orchestrator, {at_once} at once"):
                        await rate(trip, at_once, seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="Seconds for each figure [2]")
    parser.add_argument("--peers", action="store_true", help="Also measure aiomqtt and the MCP SDK")
    parser.add_argument(
        "--profile", type=int, metavar="N", help="Profile N calls in flight instead"
    )
    options = parser.parse_args()
    if options.profile:
        return asyncio.run(profiled(options.engine, options.profile, options.seconds))
    found = asyncio.run(measure(options.engine, options.rounds, options.seconds, options.peers))
    sys.exit(report(found))


if __name__ == "__main__":
    main()
