"""Throughput with 1, 2 and 3 orchestrators over one PostgreSQL, and which process is saturated.

Each run has two replies and a call, and is watched by its client. The orchestrators, PostgreSQL,
the broker, the model and the clients are separate processes whose CPU time is read from /proc, so
that the bottleneck can be named. The last line is the result as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp
import psycopg
from bench.scale.clients import create_admin_token
from bench.scale.deployment import ROOT, Deployment, Plan, cancel_on_sigterm, deploy
from bench.scale.report import save

SCRIPTS = {
    "streamed": "words 50 call todoread {}\nwords 50",
    "short": "words 1 call todoread {}\nwords 1",
}
"""Replies that are streamed in fifty pieces, and in one."""
TURNS = 2
WARM_UP_RUNS = 8
"""Runs that are not measured: the first run loads modules."""
SATURATED_SHARE = 0.9
"""The core share at which a single-threaded process is saturated; PostgreSQL has many processes."""
STORE = "the store's writer thread"
BUSY = re.compile(r"^evoclaw_store_busy_seconds_total (\S+)$", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")


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
    server = deployment.postgres.process
    assert server is not None
    found = {
        orchestrator.name: cpu_s(orchestrator.pid) for orchestrator in deployment.orchestrators
    }
    backends = [cpu_s(pid) for pid in children(server.pid) if Path(f"/proc/{pid}").exists()]
    found["postgres"] = cpu_s(server.pid, waited=True) + sum(backends)
    found["broker"] = sum(
        cpu_s(broker.process.pid) for broker in deployment.brokers if broker.process
    )
    found["model"] = cpu_s(deployment.model_pid)
    return found


def busy_s() -> float:
    """The CPU time that all processes of the machine have used."""
    # The fourth and the fifth field are idle time.
    line = Path("/proc/stat").read_text().splitlines()[0]
    fields = [int(field) for field in line.split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def commits(deployment: Deployment) -> int:
    """The number of committed PostgreSQL transactions so far."""
    with psycopg.connect(deployment.postgres.url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute("SELECT sum(xact_commit) FROM pg_stat_database").fetchone()
    return int(row[0]) if row else 0


async def writer_busy_s(deployment: Deployment, admin: str) -> float:
    """Seconds for which the store's writer thread of an orchestrator was busy; the mean.

    Each orchestrator has one writer thread: when it is always busy, more cores do not help.
    """
    found: list[float] = []
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {admin}"}) as http:
        for orchestrator in deployment.orchestrators:
            async with http.get(f"{orchestrator.url}/metrics") as response:
                metric = BUSY.search(await response.text())
            if metric is None:
                raise SystemExit(
                    f"{orchestrator.name} has no metric evoclaw_store_busy_seconds_total"
                )
            found.append(float(metric[1]))
    return mean(found)


async def measure(
    deployment: Deployment, admin: str, kind: str, runs: int, at_once: int
) -> dict[str, Any]:
    """One row: runs of one kind with the orchestrators of a deployment."""
    urls = [orchestrator.url for orchestrator in deployment.orchestrators]
    plan = {"urls": urls, "token": admin, "message": SCRIPTS[kind], "runs": runs}
    plan["at_once"] = at_once
    argv = (sys.executable, "-m", "bench.scale.load_client", json.dumps(plan))
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert client.stdin is not None
    assert client.stdout is not None
    await client.stdout.readline()
    commits_before, written = commits(deployment), await writer_busy_s(deployment, admin)
    before, busy = used(deployment), busy_s()
    client.stdin.write(b"go\n")
    output = await client.stdout.readline()
    after, busy = used(deployment), busy_s() - busy
    written = await writer_busy_s(deployment, admin) - written
    await client.wait()
    if client.returncode:
        raise SystemExit(f"the load client exited with {client.returncode}")
    found = json.loads(output)
    cpu = {name: after[name] - before[name] for name in after} | {"clients": found["cpu_s"]}
    names = [orchestrator.name for orchestrator in deployment.orchestrators]
    per_run = (commits(deployment) - commits_before) / runs
    figures = row(names, runs, found["seconds"], cpu, busy)
    share = round(written / found["seconds"], 2)
    if share >= SATURATED_SHARE:
        figures["full"].append(STORE)
    return {"replies": kind, **figures, "commits_per_run": round(per_run, 1), "on_the_store": share}


def row(
    names: list[str], runs: int, seconds: float, cpu: dict[str, float], busy: float
) -> dict[str, Any]:
    """The figures of one measurement; `names` are the orchestrators in `cpu`."""
    ours = sum(cpu[name] for name in names)
    turns = max(1, runs * TURNS)
    cores = {name: round(spent / seconds, 2) for name, spent in cpu.items()}
    total, machine = sum(cpu.values()) / seconds, busy / seconds
    return {
        "orchestrators": len(names),
        "runs_per_s": round(runs / seconds, 1),
        "turns_per_s": round(runs * TURNS / seconds, 1),
        "cores": cores,
        "cores_in_use": round(total, 2),
        "cores_of_others": round(max(0.0, machine - total), 2),
        "turns_per_core_s": round(turns / ours, 1) if ours else 0.0,
        "ms_per_turn": {
            "orchestrators": round(1e3 * ours / turns, 2),
            **{name: round(1e3 * s / turns, 2) for name, s in cpu.items() if name not in names},
        },
        "full": [
            name for name, share in cores.items() if share >= SATURATED_SHARE and name != "postgres"
        ]
        + (["machine"] if machine >= SATURATED_SHARE * (os.cpu_count() or 1) else []),
    }


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    """All rows."""
    cancel_on_sigterm()
    rows: list[dict[str, Any]] = []
    for count in options.orchestrators:
        plan = Plan(0, 0, "mosquitto", calls_of_user=0, orchestrators=count, direct=True)
        with tempfile.TemporaryDirectory(prefix="scalespeed-") as folder:
            async with deploy(Path(folder), plan) as deployment, aiohttp.ClientSession() as http:
                for orchestrator in deployment.orchestrators:
                    await orchestrator.wait_ready(http)
                admin = await create_admin_token(deployment, http)
                for kind in SCRIPTS:
                    await measure(deployment, admin, kind, WARM_UP_RUNS, WARM_UP_RUNS)
                    found = await measure(deployment, admin, kind, options.runs, options.at_once)
                    rows.append(found)
                    print(json.dumps(rows[-1]), flush=True)
    return {"rows": rows, "ceiling": ceilings(rows), "efficiency": efficiency(rows)}


def ceilings(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each kind of reply: the throughput of one orchestrator, and what is saturated."""
    return {
        row["replies"]: {"turns_per_s": row["turns_per_s"], "full": row["full"]}
        for row in rows
        if row["orchestrators"] == 1
    }


def efficiency(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Turns per core second of the orchestrators, relative to one orchestrator."""
    single = {row["replies"]: row["turns_per_core_s"] for row in rows if row["orchestrators"] == 1}
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if base := single.get(row["replies"]):
            share = round(row["turns_per_core_s"] / base, 2)
            found.setdefault(row["replies"], {})[str(row["orchestrators"])] = share
    return found


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=400, help="Runs of each row [400]")
    parser.add_argument("--at-once", type=int, default=48, help="Concurrent runs [48]")
    parser.add_argument("--orchestrators", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--page", action="store_true", help="Update docs/scale-figures.md")
    options = parser.parse_args()
    found = asyncio.run(bench(options))
    if options.page:
        save("speed", found)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
