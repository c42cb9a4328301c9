"""The service under load: 200 concurrent runs over HTTP with watchers; ends with one JSON object.

One `evoclaw up`, a model server and the watchers are three processes on this machine. Each run
streams a reply, calls a tool and streams another reply, about 100 pieces in total. Every watcher
must receive every record of its run exactly once; measured is the delay since the record's
timestamp. It is compared with a single run, and with a bare server (`bench.service_floor`) that
sends as many events to the same watchers. Then some watchers stop reading: they are disconnected,
reconnect with the last event id they received, and must miss nothing. The exit code is 1 if a
record was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
from tests.support.stalled_watcher import DROPPED, StalledWatcher

ROOT = Path(__file__).parent.parent
REQUEST_TIMEOUT_S = 150.0
"""Seconds after which a request counts as failed."""
SETTINGS = """
[server]
requests_per_minute = 1000000
burst = 100000
connections = 10000
watchers = 5000
watchers_per_caller = 5000

[runs]
per_tenant = 256

[rates]
per_minute = 100000
burst = 100000

[[agents]]
id = "evoclaw"
capabilities = ["*"]
autonomy = "full"
tools = ["todoread", "todowrite"]
"""
"""High limits: one caller replaces many, and limits per caller must not affect the measurement."""
FEW, MANY = 1, 5
"""Watchers of most runs, and of every tenth."""
RAMP = 10
"""Paced runs that are started in each pause; the others are started at once."""
WORDS = 50
"""Pieces of each of the two replies."""
PIECE = re.compile(
    rb'id: (\d+)\nevent: (\w+)\ndata: \{"run_id":\s*"[^"]*",\s*"seq":\s*\d+,\s*"at":\s*([\d.]+)'
)
TEXT = re.compile(r'"type":"text_delta","text":"([^"]*)"')
SAID = "".join(f"word{number} " for number in range(WORDS))


@dataclass
class Watched:
    """The data that one watcher received, with timestamps; parsed after the measurement."""

    run: str
    since: float = 0.0
    """When it connected: earlier records are not counted."""
    chunks: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])

    @property
    def whole(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    def seen(self) -> list[int]:
        """The sequence numbers of the records, in order."""
        return [int(found[1]) for found in PIECE.finditer(self.whole)]

    def late(self) -> list[float]:
        """The delay in seconds of each record that was written while it watched."""
        ends: list[tuple[int, float]] = []
        size = 0
        for at, chunk in self.chunks:
            size += len(chunk)
            ends.append((size, at))
        found: list[float] = []
        place = 0
        for piece in PIECE.finditer(self.whole):
            while ends[place][0] < piece.end():
                place += 1
            if (at := float(piece[3])) >= self.since:
                found.append(ends[place][1] - at)
        return found


@dataclass
class Gauge:
    """The CPU time and memory of a process, sampled ten times a second."""

    pid: int
    peak_mb: float = 0.0

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @asynccontextmanager
    async def used(self, into: dict[str, Any]) -> AsyncGenerator[None]:
        """Write the usage during the block into a dictionary."""
        before, cpu, began = self.memory_mb(), self.cpu_s(), time.perf_counter()
        self.peak_mb = before
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            took = time.perf_counter() - began
            into |= {
                "seconds": round(took, 2),
                "cpu_s": round(self.cpu_s() - cpu, 2),
                "cpu_share": round((self.cpu_s() - cpu) / took, 2),
                "memory_mb": {
                    "before": round(before, 1),
                    "peak": round(max(self.peak_mb, self.memory_mb()), 1),
                    "after": round(self.memory_mb(), 1),
                },
            }

    async def _look(self) -> None:
        while True:
            self.peak_mb = max(self.peak_mb, self.memory_mb())
            await asyncio.sleep(0.1)


@dataclass
class Service:
    """A client of the service, and its resource usage."""

    http: aiohttp.ClientSession
    url: str
    token: str
    gauge: Gauge

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    async def begin(self, message: str) -> str:
        body = {"message": message}
        async with self.http.post(f"{self.url}/v1/runs", json=body, headers=self.headers) as found:
            if found.status != 201:
                raise SystemExit(f"cannot start a run: {found.status} {await found.text()}")
            return str((await found.json())["run_id"])

    async def watch(self, run: str, after: int = 0) -> Watched:
        """Watch a run to its end."""
        url = f"{self.url}/v1/runs/{run}/events?after={after}"
        return await watch(self.http, url, run, self.headers)


async def watch(
    http: aiohttp.ClientSession, url: str, run: str, headers: dict[str, str]
) -> Watched:
    """Read an event stream to its end."""
    watched = Watched(run)
    async with http.get(url, headers=headers) as response:
        response.raise_for_status()
        watched.since = time.time()
        async for chunk in response.content.iter_any():
            watched.chunks.append((time.time(), chunk))
    return watched


@contextmanager
def served(module: str) -> Iterator[int]:
    """Run a server module in its own process; yields its port."""
    argv = [sys.executable, "-m", module]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(20)


@asynccontextmanager
async def evoclaw_up(folder: Path, models: int) -> AsyncGenerator[Service]:
    """Run `evoclaw up` with a model server."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    (home / "evoclaw.toml").write_text(SETTINGS)
    env = os.environ | {
        "EVOCLAW_HOME": str(home),
        "EVOCLAW_MODEL": "openai/scripted",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{models}/v1",
        "OPENAI_API_KEY": "none",
    }
    argv = (sys.executable, "-m", "evoclaw", "up", "--no-edge", "--api-port", "0")
    log = (folder / "up.log").open("wb")
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, env=env, stderr=log, stdout=log)
    try:
        async with asyncio.timeout(60):
            while not (home / "api.json").exists():
                if process.returncode is not None:
                    raise SystemExit((folder / "up.log").read_text())
                await asyncio.sleep(0.02)
        said = json.loads((home / "api.json").read_text())
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(REQUEST_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            yield Service(http, said["url"], said["token"], Gauge(process.pid))
    finally:
        log.close()
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)


def milliseconds(late: Sequence[float]) -> dict[str, float]:
    """The median, the 99th percentile and the maximum."""
    cuts = quantiles(late, n=100)
    return {
        "p50_ms": round(cuts[49] * 1e3, 2),
        "p99_ms": round(cuts[98] * 1e3, 2),
        "max_ms": round(max(late) * 1e3, 2),
    }


def _watchers(number: int) -> int:
    return MANY if number % 10 == 0 else FEW


async def concurrent_runs(service: Service, runs: int, pause: float) -> dict[str, Any]:
    """Concurrent runs, each watched from its start: throughput, delays, lost records."""
    script = f"words {WORDS} {pause} call todoread {{}}\nwords {WORDS} {pause}"
    figures: dict[str, Any] = {"runs": runs, "pause_s": pause}

    async def one(number: int) -> list[Watched]:
        await asyncio.sleep(number * pause / RAMP)
        run = await service.begin(script)
        return await asyncio.gather(*(service.watch(run) for _ in range(_watchers(number))))

    async with service.gauge.used(figures):
        groups = await asyncio.gather(*(one(number) for number in range(runs)))
    lost, twice, events, calls, late = 0, 0, 0, 0, list[float]()
    for watched in groups:
        kept = await service.watch(watched[0].run)
        stored = kept.seen()
        lost += "".join(TEXT.findall(kept.whole.decode())) != SAID * 2
        calls += kept.whole.count(b"event: call_started\n")
        for each in watched:
            seen = each.seen()
            lost += len(set(stored) - set(seen))
            twice += len(seen) - len(set(seen)) + (seen != sorted(seen))
            late += each.late()
            events += len(seen)
    if calls != runs:
        raise SystemExit(f"the tool call of {runs - calls} of {runs} runs did not start")
    seconds = figures["seconds"]
    return figures | milliseconds(late) | {
        "watchers": sum(len(watched) for watched in groups),
        "events": events,
        "events_per_s": round(events / seconds),
        "runs_per_s": round(runs / seconds, 1),
        "calls": calls,
        "lost": lost,
        "twice": twice,
    }  # fmt: skip


async def floor(port: int, runs: int, pause: float, count: int) -> dict[str, Any]:
    """The same watchers at a server that only sends events."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(REQUEST_TIMEOUT_S)
    began = time.perf_counter()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        groups = await asyncio.gather(
            *(
                watch(
                    http, f"http://127.0.0.1:{port}/{runs}-{pause}-{number}/{count}/{pause}", "", {}
                )
                for number in range(runs)
                for _ in range(_watchers(number))
            )
        )
    seconds = time.perf_counter() - began
    late = [one for watched in groups for one in watched.late()]
    events = sum(len(watched.seen()) for watched in groups)
    assert events == count * len(groups), "the floor lost events"
    return {"events_per_s": round(events / seconds)} | milliseconds(late)


async def asleep(service: Service, sleepers: int, words: int) -> dict[str, Any]:
    """Watchers that stop reading while a run sends more than the buffers hold."""
    figures: dict[str, Any] = {"watchers": sleepers, "words": words}
    async with service.gauge.used(figures):
        # Slowly at first, so that all watchers are connected and up to date before the burst.
        run = await service.begin(f"words 50 0.02 call todoread {{}}\nwords {words}")
        asleep = [StalledWatcher(service.url, service.token, run) for _ in range(sleepers)]
        after = 0
        while True:  # a fast watcher, which reconnects if it is disconnected
            awake = await service.watch(run, after)
            if (dropped := DROPPED.search(awake.whole)) is None:
                break
            after = int(dropped[1])
    stored = (await service.watch(run)).seen()
    told, lost = 0, 0
    for one in asleep:
        body = await asyncio.to_thread(one.read_all)
        first = [int(found[1]) for found in PIECE.finditer(body)]
        dropped = DROPPED.search(body)
        told += dropped is not None
        after = int(dropped[1]) if dropped else first[-1]
        lost += first + (await service.watch(run, after)).seen() != stored
    return figures | {"records": len(stored), "told_where_to_go_on": told, "lost": lost}


def _ratios(found: dict[str, Any], beneath: dict[str, Any], *, paced: bool) -> dict[str, float]:
    """Ratios to the floor: delays of paced runs, throughput of the others."""
    names = ("p50_ms", "p99_ms") if paced else ("events_per_s",)
    return {name: round(found[name] / max(beneath[name], 1e-3), 2) for name in names}


async def bench(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the benchmark."""
    results: dict[str, Any] = {}
    with served("tests.support.model_server") as models, served("bench.service_floor") as bare:
        async with evoclaw_up(folder, models) as service:
            await concurrent_runs(service, 2, 0.0)  # a warm-up: the first run loads modules
            for name, runs, pause in (
                ("alone", 1, options.pause / 4),
                ("paced", options.runs, options.pause),
                ("flat_out", options.runs, 0.0),
            ):
                results[name] = found = await concurrent_runs(service, runs, pause)
                count = found["events"] // found["watchers"]
                beneath = await floor(bare, runs, pause, count)
                found["floor"] = beneath
                found["to_floor"] = _ratios(found, beneath, paced=pause > 0)
                print(f"{name}: {json.dumps(found)}", flush=True)
            results["asleep"] = await asleep(service, options.sleepers, options.words)
            print(f"asleep: {json.dumps(results['asleep'])}", flush=True)
        log = (folder / "up.log").read_text(errors="replace")
    results["p99_to_alone"] = round(results["paced"]["p99_ms"] / results["alone"]["p99_ms"], 1)
    results["lost"] = sum(
        results[name]["lost"] for name in ("alone", "paced", "flat_out", "asleep")
    )
    results["twice"] = sum(results[name]["twice"] for name in ("alone", "paced", "flat_out"))
    results["tracebacks"] = log.count("Traceback")
    return results


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="Concurrent runs [200]")
    parser.add_argument("--pause", type=float, default=0.2, help="Seconds after each piece [0.2]")
    parser.add_argument("--sleepers", type=int, default=20, help="Watchers that stop reading [20]")
    parser.add_argument("--words", type=int, default=20_000, help="Pieces sent meanwhile [20000]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="servicebench-") as folder:
        results = asyncio.run(bench(options, Path(folder)))
    print(json.dumps(results), flush=True)
    sys.exit(int(bool(results["lost"] or results["twice"] or results["tracebacks"])))


if __name__ == "__main__":
    main()
