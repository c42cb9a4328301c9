"""Throughput with 1, 2 and 3 orchestrators over one PostgreSQL, and which process is full.

Each run is two replies and a call; everybody who asks watches. The orchestrators, PostgreSQL, the
broker, the model and those who ask are processes of their own whose processor time is read from
/proc, so that what bounds the whole can be named. The last line is the result as JSON.
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
from bench.scale.clients import operator
from bench.scale.deployment import ROOT, House, Plan, brought_up, end_with_us
from bench.scale.report import save

SAYS = {
    "streamed": "words 50 call todoread {}\nwords 50",
    "short": "words 1 call todoread {}\nwords 1",
}
"""Replies that come in fifty pieces, and in one."""
TURNS = 2
WARM = 8
"""Runs before it counts: whatever is loaded with the first is loaded then."""
FULL = 0.9
"""Of a core: a process of one thread can hardly do more. PostgreSQL is many processes."""
STORE = "the store's writer thread"
BUSY = re.compile(r"^evoclaw_store_busy_seconds_total (\S+)$", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int, *, waited: bool = False) -> float:
    """The processor time of a process; with `waited` also that of its children who are gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if waited else 13])) / TICKS


def children(pid: int) -> list[int]:
    """The processes that one began."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in found.split()]


def used(house: House) -> dict[str, float]:
    """The processor time so far, by who used it."""
    server = house.postgres.process
    assert server is not None
    found = {one.name: cpu_s(one.pid) for one in house.orchestrators}
    backends = [cpu_s(pid) for pid in children(server.pid) if Path(f"/proc/{pid}").exists()]
    found["postgres"] = cpu_s(server.pid, waited=True) + sum(backends)
    found["broker"] = sum(cpu_s(one.process.pid) for one in house.brokers if one.process)
    found["model"] = cpu_s(house.model)
    return found


def busy_s() -> float:
    """The processor time of the whole machine, whoever used it."""
    # The fourth and the fifth are time that nobody used.
    fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def commits(house: House) -> int:
    """Transactions of all, so far."""
    with psycopg.connect(house.postgres.url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute("SELECT sum(xact_commit) FROM pg_stat_database").fetchone()
    return int(row[0]) if row else 0


async def at_work(house: House, admin: str) -> float:
    """Seconds in which an orchestrator's thread was at work that writes to the store; the mean.

    Each has one, which does one thing after the other: when it is at work all the time, more
    processors do not help.
    """
    found: list[float] = []
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {admin}"}) as http:
        for one in house.orchestrators:
            async with http.get(f"{one.url}/metrics") as answer:
                said = BUSY.search(await answer.text())
            if said is None:
                raise SystemExit(f"{one.name} does not say how busy its store is")
            found.append(float(said[1]))
    return mean(found)


async def measure(house: House, admin: str, says: str, runs: int, at_once: int) -> dict[str, Any]:
    """One row: so many orchestrators, runs of one kind."""
    urls = [one.url for one in house.orchestrators]
    wish = {"urls": urls, "token": admin, "message": SAYS[says], "runs": runs, "at_once": at_once}
    argv = (sys.executable, "-m", "bench.scale.load_client", json.dumps(wish))
    pipe = asyncio.subprocess.PIPE
    asking = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert asking.stdin is not None
    assert asking.stdout is not None
    await asking.stdout.readline()
    kept, wrote = commits(house), await at_work(house, admin)
    before, busy = used(house), busy_s()
    asking.stdin.write(b"go\n")
    told = await asking.stdout.readline()
    after, busy = used(house), busy_s() - busy
    wrote = await at_work(house, admin) - wrote
    await asking.wait()
    if asking.returncode:
        raise SystemExit("those who ask gave up")
    found = json.loads(told)
    cpu = {name: after[name] - before[name] for name in after} | {"clients": found["cpu_s"]}
    names = [one.name for one in house.orchestrators]
    made = (commits(house) - kept) / runs
    figures = row(names, runs, found["seconds"], cpu, busy)
    share = round(wrote / found["seconds"], 2)
    if share >= FULL:
        figures["full"].append(STORE)
    return {"replies": says, **figures, "commits_per_run": round(made, 1), "on_the_store": share}


def row(
    names: list[str], runs: int, seconds: float, cpu: dict[str, float], busy: float
) -> dict[str, Any]:
    """What is told of a measurement: those names are orchestrators."""
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
        "full": [name for name, share in cores.items() if share >= FULL and name != "postgres"]
        + (["machine"] if machine >= FULL * (os.cpu_count() or 1) else []),
    }


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    """All rows."""
    end_with_us()
    rows: list[dict[str, Any]] = []
    for count in options.orchestrators:
        plan = Plan(0, 0, "mosquitto", calls_of_user=0, orchestrators=count, direct=True)
        with tempfile.TemporaryDirectory(prefix="scalespeed-") as folder:
            async with brought_up(Path(folder), plan) as house, aiohttp.ClientSession() as http:
                for one in house.orchestrators:
                    await one.ready(http)
                admin = await operator(house, http)
                for says in SAYS:
                    await measure(house, admin, says, WARM, WARM)
                    found = await measure(house, admin, says, options.runs, options.at_once)
                    rows.append(found)
                    print(json.dumps(rows[-1]), flush=True)
    return {"rows": rows, "ceiling": ceilings(rows), "efficiency": efficiency(rows)}


def ceilings(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each kind of reply: what one orchestrator does, and what is full then."""
    return {
        one["replies"]: {"turns_per_s": one["turns_per_s"], "full": one["full"]}
        for one in rows
        if one["orchestrators"] == 1
    }


def efficiency(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Turns for each second of an orchestrator's core, beside those of one alone."""
    alone = {one["replies"]: one["turns_per_core_s"] for one in rows if one["orchestrators"] == 1}
    found: dict[str, dict[str, float]] = {}
    for one in rows:
        if base := alone.get(one["replies"]):
            share = round(one["turns_per_core_s"] / base, 2)
            found.setdefault(one["replies"], {})[str(one["orchestrators"])] = share
    return found


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=400, help="of each row (default: 400)")
    parser.add_argument("--at-once", type=int, default=48, help="runs at a time (default: 48)")
    parser.add_argument("--orchestrators", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--page", action="store_true", help="write docs/scale-figures.md anew")
    options = parser.parse_args()
    found = asyncio.run(bench(options))
    if options.page:
        save("speed", found)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
