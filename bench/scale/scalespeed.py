"""Throughput of orchestrators over one PostgreSQL, near or some milliseconds away.

Each run has two replies and a call, and is watched by its client. The orchestrators, PostgreSQL,
the broker, the model, the clients and the proxy that delays PostgreSQL are separate processes whose
CPU time is read from /proc, so that the bottleneck can be named. Peers store the same workload over
the same delay. The last line is the result as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from bench.scale.clients import create_admin_token
from bench.scale.deployment import NAMES, Deployment, Plan, cancel_on_sigterm, deploy
from bench.scale.peer_speed import measure_peers
from bench.scale.report import save
from bench.scale.speed_row import Load, background, measure
from bench.scale.statements import postgres_statements, sqlite_writes

WARM_UP = Load("streamed", 8, 8)
"""Runs that are not measured: the first run loads modules."""
MAX_RUNS_ALONE = 20
"""Runs of a row with one run at a time."""
BACKGROUND_S = 3.0
"""Seconds for which the traffic of idle orchestrators is counted."""


@asynccontextmanager
async def running(plan: Plan) -> AsyncGenerator[tuple[Deployment, str]]:
    """A deployment that is ready and warm, and an admin token."""
    with tempfile.TemporaryDirectory(prefix="scalespeed-", ignore_cleanup_errors=True) as folder:
        async with deploy(Path(folder), plan) as deployment, aiohttp.ClientSession() as http:
            for orchestrator in deployment.orchestrators:
                await orchestrator.wait_ready(http)
            admin = await create_admin_token(deployment, http)
            await measure(deployment, admin, WARM_UP)
            yield deployment, admin


def plan_for(orchestrators: int, **changes: Any) -> Plan:
    """A deployment without edges, whose only limit is its speed."""
    return Plan(
        0,
        0,
        "mosquitto",
        calls_of_user=0,
        orchestrators=orchestrators,
        direct=True,
        **changes,
    )


async def rows_of(
    options: argparse.Namespace, count: int, fsync: str, rtts: list[float], result: dict[str, Any]
) -> None:
    """The rows of one number of orchestrators, direct or over several delays."""
    delayed = rtts != [0.0]
    plan = plan_for(count, delayed=delayed, postgres_settings=(f"fsync={fsync}",))
    async with running(plan) as (deployment, admin):
        if delayed:
            idle = await background(deployment, BACKGROUND_S)
            result["background"].append({"fsync": fsync, **idle})
        for rtt in rtts:
            if deployment.delay is not None:
                deployment.delay.delay(rtt)
            for load in loads(options, count, near=not rtt and fsync == options.fsync[0]):
                found = await measure(deployment, admin, load)
                result["rows"].append({"rtt_ms": rtt, "fsync": fsync, **found})
                print(json.dumps(result["rows"][-1]), flush=True)


def loads(options: argparse.Namespace, count: int, *, near: bool = False) -> list[Load]:
    """The loads of one number of orchestrators; all kinds of replies only if PostgreSQL is `near`.

    Short replies show the cost of streaming, which no delay changes. A run alone is the same with
    any number of orchestrators.
    """
    found: list[Load] = []
    for at_once in options.at_once:
        if at_once == 1 and count == options.orchestrators[0]:
            runs = min(options.runs, MAX_RUNS_ALONE)
            found.append(Load(options.replies[0], runs, 1, options.seconds))
        elif at_once > 1:
            kinds = options.replies if near else options.replies[:1]
            found += [Load(kind, options.runs, at_once, options.seconds) for kind in kinds]
    return found


def counts_of(options: argparse.Namespace, fsync: str) -> list[int]:
    """The numbers of orchestrators to measure; of the second PostgreSQL only fewest and most."""
    counts = options.orchestrators
    return counts if fsync == options.fsync[0] else sorted({counts[0], counts[-1]})


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    """All rows."""
    cancel_on_sigterm()
    result: dict[str, Any] = {"rows": [], "background": [], "peers": [], "sqlite": []}
    delays = [rtt for rtt in options.rtt if rtt]
    for fsync in options.fsync:
        for count in counts_of(options, fsync):
            if 0.0 in options.rtt:
                await rows_of(options, count, fsync, [0.0], result)
            if delays:
                await rows_of(options, count, fsync, delays, result)
        if delays and options.peers:
            found = await asyncio.to_thread(measure_peers, options, min(delays), fsync)
            result["peers"] += found
            print(json.dumps(found), flush=True)
    if options.sqlite:
        async with running(plan_for(1, store="sqlite")) as (deployment, admin):
            for load in loads(options, options.orchestrators[0]):
                found = await measure(deployment, admin, load)
                found |= await sqlite_writes(deployment, admin, load)
                result["sqlite"].append(found)
                print(json.dumps(found), flush=True)
    rows = result["rows"]
    return {
        **result,
        "ceiling": ceilings(rows),
        "efficiency": efficiency(rows),
        "scaling": scaling(rows),
    }


async def count_statements(options: argparse.Namespace) -> dict[str, Any]:
    """The statements of a run on PostgreSQL, and the writes of a run on SQLite; no throughput."""
    cancel_on_sigterm()
    settings = (
        f"fsync={options.fsync[0]}",
        "shared_preload_libraries=pg_stat_statements",
        "pg_stat_statements.max=10000",
        "pg_stat_statements.track=all",
        "track_functions=all",
    )
    found: dict[str, Any] = {"postgres": [], "sqlite": []}
    every = loads(options, options.orchestrators[0])
    async with running(plan_for(1, delayed=True, postgres_settings=settings)) as running_now:
        deployment, admin = running_now
        found["background"] = await background(deployment, BACKGROUND_S)
        for load in every:
            found["postgres"].append(await postgres_statements(deployment, admin, load))
    if options.sqlite:
        async with running(plan_for(1, store="sqlite")) as (deployment, admin):
            for load in every:
                row = await measure(deployment, admin, load)
                row |= await sqlite_writes(deployment, admin, load)
                found["sqlite"].append(row)
    return found


def _loaded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with many runs at once and no delay, on the PostgreSQL that was measured first."""
    return [
        row
        for row in rows
        if not row["rtt_ms"] and row["at_once"] > 1 and row["fsync"] == rows[0]["fsync"]
    ]


def ceilings(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each kind of reply: the throughput of one orchestrator, and what is saturated."""
    return {
        row["replies"]: {"turns_per_s": row["turns_per_s"], "full": row["full"]}
        for row in _loaded(rows)
        if row["orchestrators"] == 1
    }


def efficiency(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Turns per core second of the orchestrators, relative to one orchestrator."""
    rows = _loaded(rows)
    single = {row["replies"]: row["turns_per_core_s"] for row in rows if row["orchestrators"] == 1}
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if base := single.get(row["replies"]):
            share = round(row["turns_per_core_s"] / base, 2)
            found.setdefault(row["replies"], {})[str(row["orchestrators"])] = share
    return found


def scaling(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns per second with several orchestrators, relative to one, over each delay."""
    found: list[dict[str, Any]] = []
    for row in rows:
        where = {name: row[name] for name in ("rtt_ms", "fsync", "replies", "at_once")}
        single = [
            other["turns_per_s"]
            for other in rows
            if other["orchestrators"] == 1 and all(other[name] == where[name] for name in where)
        ]
        if single and single[0] and row["orchestrators"] > 1:
            ratio = round(row["turns_per_s"] / single[0], 2)
            found.append({**where, "orchestrators": row["orchestrators"], "ratio": ratio})
    return found


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=400, help="Most runs of a row [400]")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="Seconds in which a row starts runs [6]"
    )
    parser.add_argument(
        "--at-once", type=int, nargs="+", default=[1, 24], help="Concurrent runs [1 24]"
    )
    parser.add_argument(
        "--orchestrators", type=int, nargs="+", default=[1, 2, 3, 4], help="[1 2 3 4]"
    )
    parser.add_argument(
        "--rtt",
        type=float,
        nargs="+",
        default=[0.0, 2.0, 10.0],
        metavar="MS",
        help="Milliseconds of a round trip to PostgreSQL; 0 connects without the proxy [0 2 10]",
    )
    parser.add_argument(
        "--fsync", choices=("on", "off", "both"), default="both", help="Of PostgreSQL [both]"
    )
    parser.add_argument(
        "--replies", nargs="+", choices=("streamed", "short"), default=["streamed", "short"]
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--sqlite", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--statements",
        action="store_true",
        help="Count the statements of a run on PostgreSQL and its writes on SQLite instead",
    )
    parser.add_argument("--page", action="store_true", help="Update docs/scale-figures.md")
    options = parser.parse_args(arguments)
    if not set(options.orchestrators) <= set(range(1, len(NAMES) + 1)):
        parser.error(f"--orchestrators takes numbers from 1 to {len(NAMES)}")
    if min(options.at_once) < 1 or min(options.rtt) < 0 or min(options.runs, options.seconds) <= 0:
        parser.error("--at-once, --runs and --seconds must be positive, --rtt not negative")
    options.fsync = ["off", "on"] if options.fsync == "both" else [options.fsync]
    options.orchestrators = sorted(set(options.orchestrators))
    return options


def main() -> None:
    """Parse the command line and measure."""
    options = parsed()
    if options.statements:
        print(json.dumps(asyncio.run(count_statements(options))), flush=True)
        return
    found = asyncio.run(bench(options))
    if options.page:
        save("speed", found)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
