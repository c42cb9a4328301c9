"""Asks for runs and watches them, as many at a time as are wanted, in a process of its own.

`python -m bench.scale.load_client JSON` prints `ready`, begins at the first line it is given, and prints
what it took as JSON.
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
class Wish:
    """What to do."""

    urls: list[str]
    token: str
    message: str
    runs: int
    at_once: int


async def one(http: aiohttp.ClientSession, url: str, wish: Wish) -> None:
    """Begin a run and watch it to its end."""
    headers = {"authorization": f"Bearer {wish.token}"}
    body = {"message": wish.message}
    async with http.post(f"{url}/v1/runs", json=body, headers=headers) as begun:
        begun.raise_for_status()
        view: dict[str, Any] = await begun.json()
    async with http.get(f"{url}/v1/runs/{view['run_id']}/events", headers=headers) as found:
        found.raise_for_status()
        last = b""
        async for chunk in found.content.iter_any():
            last = (last + chunk)[-4096:]
    if b"event: run_finished" not in last or b'"stop":"completed"' not in last.replace(b" ", b""):
        raise SystemExit(f"a run did not end as it should: {last[-500:]!r}")


async def asked(wish: Wish) -> dict[str, float]:
    """All of them: the seconds, and the processor time of this process."""
    urls, left = itertools.cycle(wish.urls), iter(range(wish.runs))
    patience = aiohttp.ClientTimeout(120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as http:

        async def again() -> None:
            for _ in left:
                await one(http, next(urls), wish)

        began, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(again() for _ in range(wish.at_once)))
        return {
            "seconds": time.perf_counter() - began,
            "cpu_s": time.process_time() - used,
        }


if __name__ == "__main__":
    wanted = Wish(**json.loads(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(asked(wanted))), flush=True)
