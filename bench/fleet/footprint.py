"""What an idle edge costs: memory once connected, and the time from exec to online.

Each start of an edge is followed by one of a bare MQTT client in a Python process of its own, which
is the floor. The last line is the result as JSON. When a target is missed, the dearest imports are
named.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.support.process_fleet import InProcessOrchestrator, ProcessFleet, open_process_fleet

from evoclaw.transport.broker import EmbeddedBroker

MOST_MB, MOST_SECONDS = 40.0, 0.6
ROUNDS = 7
SHOWN = 12

Start = tuple[float, float]
"""Seconds until it is there, and megabytes then."""


async def once(here: ProcessFleet, hub: InProcessOrchestrator, number: int) -> Start:
    """Start an edge; the seconds until it is online, and its megabytes when it has settled."""
    edge = await here.edge(f"edge-{number}")
    born = asyncio.get_running_loop().create_future()

    def heard(presence: object) -> None:
        if not born.done():
            born.set_result(time.perf_counter())

    hub.orchestrator.on_presence(heard)
    began = time.perf_counter()
    await edge.start()
    async with asyncio.timeout(30):
        online = await born
    await hub.wait_online(edge.name)
    await hub.ping(edge.name)
    memory = resident_mb(edge.pid)
    await edge.kill()
    await hub.presence(edge.name, online=False)
    return online - began, memory


def resident_mb(pid: int) -> float:
    """A process's resident memory, in millions of bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def bare(port: int) -> tuple[float, float]:
    """Start a bare client; the seconds until it has subscribed, and its megabytes."""
    argv = [sys.executable, "-m", "bench.fleet.bare_clients", str(port), "0", "1"]
    began = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = time.perf_counter() - began, resident_mb(process.pid)
        process.kill()
    return found


async def measure(engine: str, rounds: int) -> tuple[list[Start], list[Start]]:
    """Starts of edges and of bare clients in turns, after one each that warms the disk's cache."""
    with (
        tempfile.TemporaryDirectory(prefix="footprint-") as folder,
        tempfile.TemporaryDirectory(prefix="footprint-") as other,
    ):
        async with (
            EmbeddedBroker(other, engine=engine, anonymous=True) as plain,
            open_process_fleet(Path(folder), engine) as here,
            here.hub() as hub,
        ):
            await once(here, hub, rounds)
            bare(plain.port)
            pairs = [(await once(here, hub, each), bare(plain.port)) for each in range(rounds)]
    return [ours for ours, _ in pairs], [floor for _, floor in pairs]


def dearest() -> list[str]:
    """Which imports of an edge cost what, by the interpreter's own account."""
    # No broker is there: it imports everything and waits.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.toml"
        path.write_text(
            'agent_id = "pi"\ncapabilities = ["*"]\n[broker]\nurl = "mqtt://127.0.0.1:1"\n'
        )
        argv = [sys.executable, "-X", "importtime", "-m", "evoclaw", "edge", "--config", str(path)]
        env = {**os.environ, "EVOCLAW_HOME": folder}
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=env)
        time.sleep(3)
        process.terminate()
        _, said = process.communicate(timeout=30)
    rows = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|( *)(\S+)", said)
    ours: dict[str, int] = {}
    for own, _, _, name in rows:
        package = ".".join(name.split(".")[: 2 if name.startswith("evoclaw") else 1])
        ours[package] = ours.get(package, 0) + int(own)
    top = sorted(ours.items(), key=lambda item: -item[1])[:SHOWN]
    return [f"  {micro / 1000:6.1f} ms  {package}" for package, micro in top]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--imports", action="store_true", help="name the dearest imports anyway")
    options = parser.parse_args()
    starts, floors = asyncio.run(measure(options.engine, options.rounds))
    seconds, memory = zip(*starts, strict=True)
    print("start, s:   " + " ".join(f"{one:.2f}" for one in sorted(seconds)))
    print("memory, MB: " + " ".join(f"{one:.1f}" for one in sorted(memory)))
    figures = {
        "start_s": round(median(seconds), 3),
        "start_worst_s": round(max(seconds), 3),
        "memory_mb": round(median(memory), 1),
        "bare_start_s": round(median(seconds for seconds, _ in floors), 3),
        "bare_mb": round(median(memory for _, memory in floors), 1),
        "target_s": MOST_SECONDS,
        "target_mb": MOST_MB,
    }
    missed = figures["start_s"] > MOST_SECONDS or figures["memory_mb"] > MOST_MB
    if missed or options.imports:
        print("the dearest imports, by themselves:")
        print("\n".join(dearest()))
    print(json.dumps(figures), flush=True)
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
