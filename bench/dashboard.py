"""The dashboard under load: 1,000 edges and a run of 10,000 events in a real Chromium.

The service and the dashboard are the real ones; the edges are registered with a real fleet and send
33 heartbeats a second, without processes behind them. Measured are the time until a view shows its
first item, and the frame times while the view scrolls and updates. The floor is the same browser
scrolling an empty page in the same run. Ends with one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from playwright.async_api import Browser, Page
from tests.page.browsing import chromium
from tests.support.service import ServiceHarness, build_service

from evoclaw.api.app import create_app
from evoclaw.api.server import serving
from evoclaw.api.settings import ServerSettings
from evoclaw.core.messages import Reply, ToolCall
from evoclaw.dashboard.static_files import dashboard_routes
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.providers.scripted import Scripted, says
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.wire import Advert, AdvertisedTool, Heartbeat

EDGES, EVENTS = 1_000, 10_000
BEATS = 33
"""Heartbeats per second: a thousand edges, one each in 30 s."""
TURNS, CALLS = 18, 20
SCROLL_S = 6.0
SMOOTH = """async ([selector, seconds]) => {
  const place = document.querySelector(selector) || document.scrollingElement;
  const gaps = [], tasks = [];
  const observer = new PerformanceObserver((list) =>
    list.getEntries().forEach((entry) => tasks.push(entry.duration)));
  observer.observe({ entryTypes: ["longtask"] });
  const began = performance.now();
  let last = began;
  await new Promise((resolve) => {
    const step = (now) => {
      gaps.push(now - last);
      last = now;
      const share = (now - began) / (1000 * seconds);
      place.scrollTop = (place.scrollHeight - place.clientHeight) * Math.abs(Math.sin(share * 6));
      if (share < 1) requestAnimationFrame(step); else resolve();
    };
    requestAnimationFrame(step);
  });
  observer.disconnect();
  gaps.sort((a, b) => a - b);
  const at = (share) => gaps[Math.floor(share * (gaps.length - 1))];
  return { frames: gaps.length, p50_ms: at(0.5), p95_ms: at(0.95), max_ms: at(1),
    long_tasks: tasks.length, longest_task_ms: Math.max(0, ...tasks),
    nodes: document.querySelectorAll("*").length };
}"""


def beat(number: int, count: int, random: Random) -> Heartbeat:
    return Heartbeat(
        boot_id="boot",
        counter=1,
        in_flight=random.randrange(5),
        queued=random.randrange(3),
        cpu_percent=random.random() * 100,
        memory_mb=30 + random.random() * 20,
        uptime_s=float(count),
    )


def register_edges(orchestrator: Orchestrator) -> None:
    """Register the edges with the fleet."""
    random, fleet = Random(1), orchestrator.fleet
    tools = [AdvertisedTool(name, "1", f"hash-{name}") for name in ("read", "bash", "grep")]
    for number in range(EDGES):
        name = f"edge-{number:04}"
        fleet.on_heartbeat(name, beat(number, 0, random))
        fleet.on_advert(
            Advert(agent_id=name, agent_type="pi", capabilities=f"shelf {number}", tools=tools)
        )


async def send_heartbeats(orchestrator: Orchestrator) -> None:
    """Send heartbeats of random edges at a constant rate."""
    random, count = Random(2), 0
    while True:
        await asyncio.sleep(1 / BEATS)
        count += 1
        name = f"edge-{random.randrange(EDGES):04}"
        orchestrator.fleet.on_heartbeat(name, beat(count, count, random))


def script() -> list[Reply]:
    """A run of about `EVENTS` events: streamed replies and parallel calls."""
    # Pieces that arrive together are stored as fewer records.
    pieces = 2 * EVENTS // TURNS
    text = "".join(f"piece {number}\n" for number in range(pieces))
    replies = [
        Reply(
            text,
            tuple(
                ToolCall(f"c{turn}-{n}", "work", json.dumps({"what": f"{turn}/{n}"}))
                for n in range(CALLS)
            ),
        )
        for turn in range(TURNS)
    ]
    return [*replies, says("That is all.")]


@asynccontextmanager
async def service(folder: Path) -> AsyncGenerator[tuple[ServiceHarness, Orchestrator, str, str]]:
    settings = ServerSettings(port=0, stop_within_s=1, requests_per_minute=100_000, burst=10_000)
    async with (
        build_service(folder, Scripted(*script()), settings=settings) as (harness, _),
        await CommandStore.open(folder / "fleet.db") as commands,
        harness.runs.serving(),
    ):
        orchestrator = Orchestrator(MemoryLink(MemoryBroker()), commands)
        register_edges(orchestrator)
        parts = replace(harness.parts(settings, orchestrator), extra_routes=dashboard_routes())
        async with serving(create_app(parts), settings) as url:
            yield harness, orchestrator, url, await harness.token("*", user="")


async def seen(page: Page, address: str, selector: str) -> float:
    """Milliseconds from opening a view until its first item is visible."""
    began = time.perf_counter()
    await page.evaluate("address => { location.hash = address; }", address)
    await page.wait_for_selector(selector, timeout=60_000)
    return round((time.perf_counter() - began) * 1000, 1)


async def smooth(page: Page, selector: str) -> dict[str, Any]:
    found: dict[str, Any] = await page.evaluate(SMOOTH, [selector, SCROLL_S])
    return {key: round(value, 1) for key, value in found.items()}


async def finished(url: str, token: str) -> str:
    """Start the long run and wait for its end; its id."""
    headers = {"authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(url, headers=headers) as http:
        async with http.post("/v1/runs", json={"message": "a long story"}) as answer:
            run_id: str = (await answer.json())["run_id"]
        while True:
            async with http.get(f"/v1/runs/{run_id}") as answer:
                if (await answer.json())["state"] == "ended":
                    return run_id
            await asyncio.sleep(0.2)


async def measure(browser: Browser, folder: Path) -> dict[str, Any]:
    async with service(folder) as (harness, orchestrator, url, token):
        run_id = await finished(url, token)
        records = await harness.talks.store.records(run_id, 0, 100_000)
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        await page.set_content("<div style='height:100000px'></div>")
        floor = await smooth(page, "html")
        await page.goto(f"{url}/#token={token}")
        await page.wait_for_selector("#link[data-state=open]")
        heartbeats = asyncio.create_task(send_heartbeats(orchestrator))
        try:
            fleet_ms = await seen(page, "#/fleet", ".view-fleet .list-item")
            fleet = await smooth(page, ".view-fleet .list")
        finally:
            heartbeats.cancel()
        run_ms = await seen(page, f"#/runs/{run_id}", ".view-run .list-item")
        run = await smooth(page, ".view-run .list")
    return {
        "edges": EDGES,
        "fleet_seen_ms": fleet_ms,
        "fleet": fleet,
        "events": len(records),
        "run_seen_ms": run_ms,
        "run": run,
        "floor": floor,
        "fleet_p95_of_floor": round(fleet["p95_ms"] / floor["p95_ms"], 2),
        "run_p95_of_floor": round(run["p95_ms"] / floor["p95_ms"], 2),
    }


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with chromium() as browser:
            found = await measure(browser, Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
