"""A load client in its own process: starts runs over HTTP and watches them, several at a time.

`python -m bench.scale.load_client JSON` prints `ready`, starts at the first line on its standard
input, and prints the runs, the elapsed and the CPU time, and the latencies of the runs as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass
class LoadPlan:
    """The runs to start."""

    urls: list[str]
    token: str
    message: str
    runs: int
    at_once: int
    seconds: float = float("inf")
    """No run is started later than this."""


async def run_and_watch(http: aiohttp.ClientSession, url: str, plan: LoadPlan) -> None:
    """Start a run and watch it to its end."""
    headers = {"authorization": f"Bearer {plan.token}"}
    body = {"message": plan.message}
    async with http.post(f"{url}/v1/runs", json=body, headers=headers) as response:
        response.raise_for_status()
        view: dict[str, Any] = await response.json()
    async with http.get(f"{url}/v1/runs/{view['run_id']}/events", headers=headers) as response:
        response.raise_for_status()
        last = b""
        async for chunk in response.content.iter_any():
            last = (last + chunk)[-4096:]
    if b"event: run_finished" not in last or b'"stop":"completed"' not in last.replace(b" ", b""):
        raise SystemExit(f"a run did not complete; the last events are {last[-500:]!r}")


async def run_load(plan: LoadPlan) -> dict[str, Any]:
    """Start all runs; the elapsed seconds, the CPU time of this process, and all latencies."""
    urls, remaining = itertools.cycle(plan.urls), iter(range(plan.runs))
    latencies: list[float] = []
    timeout = aiohttp.ClientTimeout(120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:

        async def work() -> None:
            for _ in remaining:
                began = time.perf_counter()
                if began - started > plan.seconds:
                    return
                await run_and_watch(http, next(urls), plan)
                latencies.append(time.perf_counter() - began)

        started, cpu_before = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(plan.at_once)))
        return {
            "runs": len(latencies),
            "latencies_s": latencies,
            "seconds": time.perf_counter() - started,
            "cpu_s": time.process_time() - cpu_before,
        }


if __name__ == "__main__":
    load_plan = LoadPlan(**json.loads(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(run_load(load_plan))), flush=True)
