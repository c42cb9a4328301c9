"""A thousand edges on one orchestrator: who is there, what they can do, and a call to all of them.

The edges are light ones in two other processes, each with a connection, a journal and a thread of
its own; broker and orchestrator are real. Before that, the floor on the same broker: as many bare
clients in two processes, each of which is sent something and sends it back. The last line is the
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
from bench.fleet.bare_clients import BACK, topic_of

from evoclaw.core.errors import EvoClawError
from evoclaw.core.tools import Call
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.address import Address
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.mqtt import MqttLink

PROCESSES = 2
PATIENCE = 120.0
BODY = 500
"""Bytes, about what a command or a report of such a call has."""
ROUNDS = 3
"""Of each call to all; the best counts."""


def resident_mb(pid: int) -> float:
    """A process's memory, in millions of bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def crowd(port: int, folder: str, count: int) -> Iterator[None]:
    """The edges, while the block runs."""
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
def bare_crowd(port: int, count: int) -> Iterator[None]:
    """The bare clients, while the block runs."""
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
    """The seconds until each bare client was sent something and sent it back, at best."""
    with bare_crowd(port, count):
        async with connected("asks", port) as client:
            missing, all_back = set[bytes](), asyncio.Event()

            def back(_client: object, _topic: str, payload: bytes, _qos: int, _: object) -> int:
                missing.discard(payload[:8])
                if not missing:
                    all_back.set()
                return 0

            client.on_message = back
            client.subscribe(BACK, qos=1)
            took: list[float] = []
            for _ in range(ROUNDS):
                all_back.clear()
                missing |= {number.to_bytes(8, "big") for number in range(count)}
                began = time.perf_counter()
                for number in range(count):
                    body = number.to_bytes(8, "big") + b"x" * BODY
                    client.publish(topic_of(number), body, qos=1)
                async with asyncio.timeout(PATIENCE):
                    await all_back.wait()
                took.append(time.perf_counter() - began)
    return min(took)


async def ready(orchestrator: Orchestrator, count: int) -> tuple[float, float]:
    """Seconds until all are online, and until the tools of all are known; or until given up."""
    began, online, fleet = time.perf_counter(), 0.0, orchestrator.fleet
    while (passed := time.perf_counter() - began) < PATIENCE:
        there = fleet.online()
        if len(there) == count and not online:
            online = passed
        if online and all(len(member.tools) for member in there):
            return online, passed
        await asyncio.sleep(0.05)
    return online or PATIENCE, PATIENCE


async def fan_out(orchestrator: Orchestrator) -> tuple[float, int]:
    """One call to all; the seconds it took, and how many did it."""
    everybody = orchestrator.edge_call(frozenset({"*"}))
    began = time.perf_counter()
    try:
        tool = everybody.tools()[0]
        arguments = {"agent_id": "*", "action": "nothing", "params": {}}
        call = Call("c", tool, arguments, f"{secrets.token_hex(16)}.1.0.1", tool.timeout)
        async with asyncio.timeout(PATIENCE):
            result = await everybody.execute(call, lambda text: None)
    except EvoClawError as problem:
        print(f"no call to all: {problem}")
        return 0.0, 0
    agents = result.details["agents"]
    return time.perf_counter() - began, sum(outcome == "ok" for outcome in agents.values())


async def measure(options: argparse.Namespace) -> dict[str, float | None]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="many-") as folder:
        broker = EmbeddedBroker(Path(folder) / "broker", engine=options.engine, anonymous=True)
        async with broker, await CommandStore.open(Path(folder) / "orchestrator.db") as store:
            bare = await bare_fan_out(broker.port, options.edges)
            print(f"{options.edges} bare clients: sent to and back in {bare:.2f} s")
            orchestrator = Orchestrator(MqttLink(Address("127.0.0.1", broker.port)), store)
            async with orchestrator.connected():
                alone = resident_mb(os.getpid())
                with crowd(broker.port, folder, options.edges):
                    online, known = await ready(orchestrator, options.edges)
                    there = orchestrator.fleet.online()
                    print(f"{len(there)} online after {online:.1f} s, tools after {known:.1f} s")
                    tries = [await fan_out(orchestrator) for _ in range(ROUNDS)]
                    seconds, did = min(one for one, _ in tries), min(did for _, did in tries)
                    print(f"a call to all: {did} did it, in {seconds:.1f} s at best")
                    began = time.perf_counter()
                    await orchestrator.query(there[-1].agent_id, "ping", seconds=30)
                    ping = time.perf_counter() - began
                    return {
                        "edges": options.edges,
                        "online": len(there),
                        "online_s": round(online, 1),
                        "tools_s": round(known, 1),
                        "fan_out": did,
                        # No figure for a call that did not reach everybody.
                        "fan_out_s": round(seconds, 3) if did == options.edges else None,
                        "bare_fan_out_s": round(bare, 3),
                        "ping_ms": round(1000 * ping, 1),
                        "orchestrator_alone_mb": round(alone, 1),
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
