"""One row of `make scalespeed`: a load on a deployment, and what it cost each process.

CPU time comes from /proc, round trips and transactions from the delaying proxy, the WAL from
PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import aiohttp
import psycopg
from bench.scale.deployment import ROOT, Deployment

SCRIPTS = {
    "streamed": "words 50 call todoread {}\nwords 50",
    "short": "words 1 call todoread {}\nwords 1",
}
"""Replies that are streamed in fifty pieces, and in one."""
TURNS = 2
SATURATED_SHARE = 0.9
"""The core share at which a single-threaded process is saturated; PostgreSQL has many processes."""
STORE = "the store"
BUSY = re.compile(r"^evoclaw_store_busy_seconds_total (\S+)$", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")
WAL_FLUSH_DELAY_S = 0.7
"""Seconds until PostgreSQL has flushed also the commits that do not wait for it."""
WAL_QUERY = """
SELECT coalesce(sum(combined_size), 0), coalesce(sum(fpi_size), 0),
       coalesce(sum(count) FILTER (WHERE "resource_manager/record_type" = 'Transaction/COMMIT'), 0)
FROM pg_get_wal_stats(%s::pg_lsn, %s::pg_lsn, true)
"""


@dataclass(frozen=True)
class Load:
    """The runs of one row."""

    replies: str
    runs: int
    at_once: int
    seconds: float = float("inf")
    """No run is started later than this."""


def cpu_s(pid: int, *, waited: bool = False) -> float:
    """The CPU time of a process; with `waited` also that of its exited children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if waited else 13])) / TICKS


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in pids.split()]


def used(deployment: Deployment) -> dict[str, float]:
    """The CPU time so far, by component."""
    found = {
        orchestrator.name: cpu_s(orchestrator.pid) for orchestrator in deployment.orchestrators
    }
    if server := deployment.postgres.process:
        backends = [cpu_s(pid) for pid in children(server.pid) if Path(f"/proc/{pid}").exists()]
        found["postgres"] = cpu_s(server.pid, waited=True) + sum(backends)
    found["broker"] = sum(
        cpu_s(broker.process.pid) for broker in deployment.brokers if broker.process
    )
    found["model"] = cpu_s(deployment.model_pid)
    if deployment.delay is not None:
        found["proxy"] = cpu_s(deployment.delay.pid)
    return found


def busy_s() -> float:
    """The CPU time that all processes of the machine have used."""
    # The fourth and the fifth field are idle time.
    line = Path("/proc/stat").read_text().splitlines()[0]
    fields = [int(field) for field in line.split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


async def writer_busy_s(deployment: Deployment, admin: str) -> float | None:
    """Seconds in which the store of an orchestrator was busy; the mean.

    None if the orchestrators do not count them.
    """
    found: list[float] = []
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {admin}"}) as http:
        for orchestrator in deployment.orchestrators:
            async with http.get(f"{orchestrator.url}/metrics") as response:
                metric = BUSY.search(await response.text())
            if metric is None:
                return None
            found.append(float(metric[1]))
    return mean(found)


@dataclass(frozen=True)
class StoreCounts:
    """What PostgreSQL and the proxy counted so far."""

    position: str
    """The end of the WAL."""
    transactions: int
    """Committed transactions by PostgreSQL's own statistics, which may be a second old."""
    proxy: dict[str, Any]
    """The counts of the proxy, which are exact; empty without a proxy."""

    @classmethod
    async def before_load(cls, deployment: Deployment) -> StoreCounts | None:
        """The counts now; None without a PostgreSQL."""
        if deployment.postgres.process is None:
            return None
        position, transactions = _server_counts(deployment)
        return cls(position, transactions, _proxy_counts(deployment))

    @classmethod
    async def after_load(cls, deployment: Deployment) -> StoreCounts | None:
        """The counts now, with the WAL that is not flushed yet; None without a PostgreSQL."""
        if deployment.postgres.process is None:
            return None
        proxy = _proxy_counts(deployment)
        await asyncio.sleep(WAL_FLUSH_DELAY_S)
        return cls(*_server_counts(deployment), proxy)

    def since(self, before: StoreCounts, deployment: Deployment) -> dict[str, Any]:
        """The sums of everything between two moments."""
        with psycopg.connect(deployment.postgres.url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
            found = connection.execute(WAL_QUERY, (before.position, self.position)).fetchone()
        assert found is not None
        size, images, written = map(int, found)
        counted = {
            "commits": self.transactions - before.transactions,
            "written_commits": written,
            "wal_bytes": size,
            "page_image_bytes": images,
            "round_trips": None,
            "by_connection": {},
        }
        return counted | (self._on_the_wire(before) if self.proxy else {})

    def _on_the_wire(self, before: StoreCounts) -> dict[str, Any]:
        earlier = before.proxy["by_connection"]
        by_connection = {
            name: count - earlier.get(name, 0)
            for name, count in self.proxy["by_connection"].items()
        }
        return {
            "commits": self.proxy["committed"] - before.proxy["committed"],
            "round_trips": sum(by_connection.values()),
            "by_connection": by_connection,
            "listening": self.proxy["listening"] - before.proxy["listening"],
            "executed": {
                verb: count - before.proxy["executed"].get(verb, 0)
                for verb, count in self.proxy["executed"].items()
            },
            "late_ms": self.proxy["late_ms"],
        }


def _server_counts(deployment: Deployment) -> tuple[str, int]:
    with psycopg.connect(deployment.postgres.url, autocommit=True) as connection:
        position = _value(connection, "SELECT pg_current_wal_flush_lsn()")
        commits = _value(connection, "SELECT sum(xact_commit) FROM pg_stat_database")
    return str(position), int(commits)


def _proxy_counts(deployment: Deployment) -> dict[str, Any]:
    return deployment.delay.counts() if deployment.delay else {}


def _value(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


async def start_client(
    deployment: Deployment, admin: str, load: Load
) -> asyncio.subprocess.Process:
    """A load client that waits for a line on its standard input."""
    plan = {
        "urls": [orchestrator.url for orchestrator in deployment.orchestrators],
        "token": admin,
        "message": SCRIPTS[load.replies],
        "runs": load.runs,
        "at_once": load.at_once,
        "seconds": load.seconds,
    }
    argv = (sys.executable, "-m", "bench.scale.load_client", json.dumps(plan))
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(
        *argv, cwd=ROOT, stdin=pipe, stdout=pipe, limit=1 << 22
    )
    assert client.stdout is not None
    await client.stdout.readline()
    return client


async def run_client(client: asyncio.subprocess.Process) -> dict[str, Any]:
    """Let a load client start; its figures."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(b"go\n")
    output = await client.stdout.readline()
    if await client.wait():
        raise SystemExit(f"the load client exited with {client.returncode}")
    found: dict[str, Any] = json.loads(output)
    return found


async def measure(deployment: Deployment, admin: str, load: Load) -> dict[str, Any]:
    """One row: runs of one kind with the orchestrators of a deployment."""
    client = await start_client(deployment, admin, load)
    written = await writer_busy_s(deployment, admin)
    store_before = await StoreCounts.before_load(deployment)
    before, busy = used(deployment), busy_s()
    found = await run_client(client)
    after, busy = used(deployment), busy_s() - busy
    store_after = await StoreCounts.after_load(deployment)
    still = await writer_busy_s(deployment, admin)
    cpu = {name: after[name] - before[name] for name in after} | {"clients": found["cpu_s"]}
    names = [orchestrator.name for orchestrator in deployment.orchestrators]
    figures = row(names, found["runs"], found["seconds"], cpu, busy)
    if written is not None and still is not None:
        share = figures["on_the_store"] = round((still - written) / found["seconds"], 2)
        # On PostgreSQL several connections are busy at a time.
        if share >= SATURATED_SHARE and deployment.postgres.process is None:
            figures["full"].append(STORE)
    if store_before and store_after:
        figures |= per_run(store_after.since(store_before, deployment), found["runs"])
    latencies = found["latencies_s"]
    return {
        "replies": load.replies,
        "at_once": load.at_once,
        **figures,
        "latency_s": round(median(latencies), 4),
        "latency_max_s": round(max(latencies), 4),
    }


def per_run(counts: dict[str, Any], runs: int) -> dict[str, Any]:
    """The counts of the store, for each run."""
    trips = counts["round_trips"]
    return {
        "commits_per_run": round(counts["commits"] / runs, 2),
        "written_commits_per_run": round(counts["written_commits"] / runs, 2),
        "round_trips_per_run": None if trips is None else round(trips / runs, 2),
        "round_trips_by_connection": {
            name: round(count / runs, 2) for name, count in counts["by_connection"].items() if count
        },
        "wal_kb_per_run": round(counts["wal_bytes"] / runs / 1000, 2),
        "page_image_kb_per_run": round(counts["page_image_bytes"] / runs / 1000, 2),
        "delay_error_ms": counts.get("late_ms"),
    }


async def background(deployment: Deployment, seconds: float) -> dict[str, float]:
    """The traffic of idle orchestrators with their PostgreSQL, in a second."""
    before = await StoreCounts.before_load(deployment)
    await asyncio.sleep(seconds)
    after = await StoreCounts.after_load(deployment)
    assert before is not None
    assert after is not None
    found = after.since(before, deployment)
    return {
        "orchestrators": len(deployment.orchestrators),
        "round_trips_per_s": round(found["round_trips"] / seconds, 2),
        "listening_round_trips_per_s": round(found["listening"] / seconds, 2),
        "commits_per_s": round(found["commits"] / seconds, 2),
        "wal_kb_per_s": round(found["wal_bytes"] / seconds / 1000, 2),
    }


def row(
    names: list[str], runs: int, seconds: float, cpu: dict[str, float], busy: float
) -> dict[str, Any]:
    """The figures of one measurement; `names` are the orchestrators in `cpu`."""
    ours = sum(cpu[name] for name in names)
    turns = max(1, runs * TURNS)
    cores = {name: round(spent / seconds, 2) for name, spent in cpu.items()}
    total, machine = sum(cpu.values()) / seconds, busy / seconds
    ms_per_turn = {
        "orchestrators": round(1e3 * ours / turns, 2),
        **{name: round(1e3 * s / turns, 2) for name, s in cpu.items() if name not in names},
    }
    return {
        "orchestrators": len(names),
        "runs": runs,
        "runs_per_s": round(runs / seconds, 1),
        "turns_per_s": round(runs * TURNS / seconds, 1),
        "orchestrator_ms": ms_per_turn["orchestrators"],
        "postgres_ms": ms_per_turn.get("postgres", 0.0),
        "cores": cores,
        "cores_in_use": round(total, 2),
        "cores_of_others": round(max(0.0, machine - total), 2),
        "turns_per_core_s": round(turns / ours, 1) if ours else 0.0,
        "ms_per_turn": ms_per_turn,
        "full": [
            name for name, share in cores.items() if share >= SATURATED_SHARE and name != "postgres"
        ]
        + (["machine"] if machine >= SATURATED_SHARE * (os.cpu_count() or 1) else []),
    }
