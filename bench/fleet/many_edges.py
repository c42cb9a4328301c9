"""A thousand edges on one orchestrator: time until online, time until tools are known, and fan-out.

The edges are light ones in two other processes, each with its own connection, journal and thread;
broker and orchestrator are real. The floor is measured first on the same broker: as many bare
clients in two processes, each of which receives a message and echoes it. The last line is the
result as JSON.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.fleet.bare_client import connected
from bench.fleet.bare_clients import ECHO_TOPIC, topic_of
from tests.support.light_edges import do_nothing

from evoclaw.core.errors import EvoClawError
from evoclaw.core.tools import Call
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.address import Address
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.mqtt import MqttLink

PROCESSES = 2
FLEET_TIMEOUT_S = 120.0
BODY_BYTES = 500
"""About the size of a command or a report of such a call."""
ROUNDS = 3
"""Rounds of each fan-out; the best one counts."""


def resident_mb(pid: int) -> float:
    """The resident memory of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def light_edges(port: int, folder: str, count: int) -> Iterator[None]:
    """Run the edges while the block runs."""
    share = -(-count // PROCESSES)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.fleet.light_edges", str(port), folder, str(first)]
            + [str(min(share, count - first))]
        )
        for first in range(0, count, share)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(20)


@contextmanager
def bare_clients(port: int, count: int) -> Iterator[None]:
    """Run the bare clients while the block runs."""
    share = -(-count // PROCESSES)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.fleet.bare_clients", str(port), str(first)]
            + [str(min(share, count - first))],
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(0, count, share)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def bare_fan_out(port: int, count: int) -> float:
    """The seconds of the best round until each bare client has echoed a message."""
    with bare_clients(port, count):
        async with connected("asks", port) as client:
            missing, all_echoed = set[bytes](), asyncio.Event()

            def on_echo(_client: object, _topic: str, payload: bytes, _qos: int, _: object) -> int:
                missing.discard(payload[:8])
                if not missing:
                    all_echoed.set()
                return 0

            client.on_message = on_echo
            client.subscribe(ECHO_TOPIC, qos=1)
            took: list[float] = []
            for _ in range(ROUNDS):
                all_echoed.clear()
                missing |= {number.to_bytes(8, "big") for number in range(count)}
                began = time.perf_counter()
                for number in range(count):
                    body = number.to_bytes(8, "big") + b"x" * BODY_BYTES
                    client.publish(topic_of(number), body, qos=1)
                async with asyncio.timeout(FLEET_TIMEOUT_S):
                    await all_echoed.wait()
                took.append(time.perf_counter() - began)
    return min(took)


async def wait_ready(orchestrator: Orchestrator, count: int) -> tuple[float, float]:
    """Seconds until all edges are online, and until all tools are known; or the timeout."""
    began, online_s, fleet = time.perf_counter(), 0.0, orchestrator.fleet
    while (passed := time.perf_counter() - began) < FLEET_TIMEOUT_S:
        online = fleet.online()
        if len(online) == count and not online_s:
            online_s = passed
        if online_s and all(len(member.tools) for member in online):
            return online_s, passed
        await asyncio.sleep(0.05)
    return online_s or FLEET_TIMEOUT_S, FLEET_TIMEOUT_S


async def fan_out(orchestrator: Orchestrator) -> tuple[float, int]:
    """Call all edges; the seconds it took, and how many succeeded."""
    executor = orchestrator.edge_call(frozenset({"*"}))
    began = time.perf_counter()
    try:
        tool = executor.tools()[0]
        arguments = {"agent_id": "*", "action": do_nothing.name, "params": {}}
        call = Call("c", tool, arguments, f"{secrets.token_hex(16)}.1.0.1", tool.timeout)
        async with asyncio.timeout(FLEET_TIMEOUT_S):
            result = await executor.execute(call, lambda text: None)
    except EvoClawError as problem:
        print(f"the call to all edges failed: {problem}")
        return 0.0, 0
    agents = result.details["agents"]
    return time.perf_counter() - began, sum(outcome == "ok" for outcome in agents.values())


async def measure(options: argparse.Namespace) -> dict[str, float | None]:
    """Measure the floor, then the edges."""
    with tempfile.TemporaryDirectory(prefix="many-") as folder:
        broker = EmbeddedBroker(Path(folder) / "broker", engine=options.engine, anonymous=True)
        async with broker, await CommandStore.open(Path(folder) / "orchestrator.db") as store:
            bare = await bare_fan_out(broker.port, options.edges)
            print(f"{options.edges} bare clients: all echoed after {bare:.2f} s")
            orchestrator = Orchestrator(MqttLink(Address("127.0.0.1", broker.port)), store)
            async with orchestrator.connected():
                memory_before = resident_mb(os.getpid())
                with light_edges(broker.port, folder, options.edges):
                    online_s, tools_s = await wait_ready(orchestrator, options.edges)
                    online = orchestrator.fleet.online()
                    print(
                        f"{len(online)} online after {online_s:.1f} s, tools after {tools_s:.1f} s"
                    )
                    rounds = [await fan_out(orchestrator) for _ in range(ROUNDS)]
                    seconds, succeeded = (min(values) for values in zip(*rounds, strict=True))
                    print(f"a call to all edges: {succeeded} succeeded, best {seconds:.1f} s")
                    began = time.perf_counter()
                    await orchestrator.query(online[-1].agent_id, "ping", seconds=30)
                    ping = time.perf_counter() - began
                    return {
                        "edges": options.edges,
                        "online": len(online),
                        "online_s": round(online_s, 1),
                        "tools_s": round(tools_s, 1),
                        "fan_out": succeeded,
                        # No figure for a call that did not reach all edges.
                        "fan_out_s": round(seconds, 3) if succeeded == options.edges else None,
                        "bare_fan_out_s": round(bare, 3),
                        "ping_ms": round(1000 * ping, 1),
                        "orchestrator_alone_mb": round(memory_before, 1),
                        "orchestrator_mb": round(resident_mb(os.getpid()), 1),
                        "broker_mb": round(resident_mb(broker.pid), 1),
                    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--edges", type=int, default=1000)
    figures = asyncio.run(measure(parser.parse_args()))
    print(json.dumps(figures), flush=True)
    sys.exit(int(figures["fan_out"] != figures["edges"]))


if __name__ == "__main__":
    main()
