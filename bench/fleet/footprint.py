"""The footprint of an idle edge: its memory once connected, and the time from exec to online.

Each start of an edge is followed by a start of a bare MQTT client in its own Python process, which
is the floor. The last line is the result as JSON. When a target is missed, the slowest imports are
printed.
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

MAX_MEMORY_MB, MAX_START_S = 40.0, 0.6
ROUNDS = 7
SHOWN_IMPORTS = 12

Start = tuple[float, float]
"""Seconds until a process is online, and its memory in megabytes then."""


async def start_edge(fleet: ProcessFleet, hub: InProcessOrchestrator, number: int) -> Start:
    """Start an edge; the seconds until it is online, and its memory once it is idle."""
    edge = await fleet.edge(f"edge-{number}")
    first_presence = asyncio.get_running_loop().create_future()

    def on_presence(presence: object) -> None:
        if not first_presence.done():
            first_presence.set_result(time.perf_counter())

    hub.orchestrator.on_presence(on_presence)
    began = time.perf_counter()
    await edge.start()
    async with asyncio.timeout(30):
        online = await first_presence
    await hub.wait_online(edge.name)
    await hub.ping(edge.name)
    memory = resident_mb(edge.pid)
    await edge.kill()
    await hub.presence(edge.name, online=False)
    return online - began, memory


def resident_mb(pid: int) -> float:
    """The resident memory of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def start_bare_client(port: int) -> Start:
    """Start a bare client; the seconds until it has subscribed, and its memory."""
    argv = [sys.executable, "-m", "bench.fleet.bare_clients", str(port), "0", "1"]
    began = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = time.perf_counter() - began, resident_mb(process.pid)
        process.kill()
    return found


async def measure(engine: str, rounds: int) -> tuple[list[Start], list[Start]]:
    """Start edges and bare clients alternately, after one start each to warm the page cache."""
    with (
        tempfile.TemporaryDirectory(prefix="footprint-") as folder,
        tempfile.TemporaryDirectory(prefix="footprint-") as other,
    ):
        async with (
            EmbeddedBroker(other, engine=engine, anonymous=True) as plain,
            open_process_fleet(Path(folder), engine) as fleet,
            fleet.hub() as hub,
        ):
            await start_edge(fleet, hub, rounds)
            start_bare_client(plain.port)
            pairs = [
                (await start_edge(fleet, hub, number), start_bare_client(plain.port))
                for number in range(rounds)
            ]
    return [ours for ours, _ in pairs], [floor for _, floor in pairs]


def slowest_imports() -> list[str]:
    """The slowest imports of an edge, measured with `-X importtime`."""
    # There is no broker at this address: the edge imports everything and retries.
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
        _, stderr = process.communicate(timeout=30)
    rows = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|( *)(\S+)", stderr)
    packages: dict[str, int] = {}
    for own, _, _, name in rows:
        package = ".".join(name.split(".")[: 2 if name.startswith("evoclaw") else 1])
        packages[package] = packages.get(package, 0) + int(own)
    top = sorted(packages.items(), key=lambda item: -item[1])[:SHOWN_IMPORTS]
    return [f"  {micro / 1000:6.1f} ms  {package}" for package, micro in top]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=("nats", "mosquitto"), default="nats")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--imports", action="store_true", help="Always print the slowest imports")
    options = parser.parse_args()
    starts, floors = asyncio.run(measure(options.engine, options.rounds))
    seconds, memory = zip(*starts, strict=True)
    print("start, s:   " + " ".join(f"{value:.2f}" for value in sorted(seconds)))
    print("memory, MB: " + " ".join(f"{value:.1f}" for value in sorted(memory)))
    figures = {
        "start_s": round(median(seconds), 3),
        "start_worst_s": round(max(seconds), 3),
        "memory_mb": round(median(memory), 1),
        "bare_start_s": round(median(seconds for seconds, _ in floors), 3),
        "bare_mb": round(median(memory for _, memory in floors), 1),
        "target_s": MAX_START_S,
        "target_mb": MAX_MEMORY_MB,
    }
    missed = figures["start_s"] > MAX_START_S or figures["memory_mb"] > MAX_MEMORY_MB
    if missed or options.imports:
        print("slowest imports (own time):")
        print("\n".join(slowest_imports()))
    print(json.dumps(figures), flush=True)
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
