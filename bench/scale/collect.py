"""Reads what was left behind into a history: store, watchers, marks, journals, the model's log."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from bench.scale.clients import STREAM, Load, Service
from bench.scale.consistency import Bounds, Called, History, Mark, Paid, Spell, Stored, Told
from bench.scale.deployment import House
from bench.scale.model_process import KEY

MARK = re.compile(r"echo (k[0-9a-f]{10}(?:s\d)?\.\d+\.\d+) ")
AT_ONCE = 8


async def history(load: Load, spells: list[Spell]) -> History:
    """All of it, when nothing goes on any more."""
    house, plan = load.house, load.house.plan
    return History(
        asked=list(load.asked.values()),
        stored=await stored_runs(load.service, load.admin, house.folder / "records.jsonl"),
        watched=load.watched,
        marks=list(marks(house)),
        paid=list(paid(house.paid)),
        spells=spells,
        untold=[
            f"{edge.name} {one}" for edge in house.all_edges() for one in edge.unacknowledged()
        ],
        bounds=Bounds(plan.calls_of_run, plan.turns_of_run, plan.calls_of_user),
    )


async def stored_runs(service: Service, admin: str, kept: Path) -> list[Stored]:
    """Every run that there is, with its records, which are also kept for who looks into them."""
    views: list[dict[str, Any]] = []
    before = ""
    while True:
        page = await service.ask("GET", f"/v1/runs?limit=200&before={before}", admin)
        views += page["items"]
        if not (before := page.get("next", "")):
            break
    places = asyncio.Semaphore(AT_ONCE)

    async def one(view: dict[str, Any]) -> Stored:
        async with places:
            records = await _records(service, view["run_id"], admin)
        with kept.open("a") as log:
            log.writelines(json.dumps(record) + "\n" for record in records)
        key = KEY.search(view.get("asked", ""))
        told, calls = summed_up(records)
        stop, denied = view.get("stop") or "", sum(map(_is_denied, records))
        why = records[-1].get("event", {}).get("reason", "") if records else ""
        return Stored(
            view["run_id"], key[0] if key else "", view["state"], stop, told, calls, denied, why
        )

    return list(await asyncio.gather(*(one(view) for view in views)))


async def _records(service: Service, run: str, admin: str) -> list[dict[str, Any]]:
    """As any watcher gets them who comes when all is over."""
    headers = {"authorization": f"Bearer {admin}"}
    for url in service.order() * 3:
        try:
            path = f"{url}/v1/runs/{run}/events"
            async with service.http.get(path, headers=headers, timeout=STREAM) as found:
                text = await found.text()
        except (aiohttp.ClientError, TimeoutError):
            continue
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    raise SystemExit(f"the records of {run} cannot be had")


def _is_denied(record: dict[str, Any]) -> bool:
    event = record.get("event", {})
    return event.get("type") == "call_judged" and event["verdict"] == "deny"


def summed_up(records: list[dict[str, Any]]) -> tuple[tuple[Told, ...], tuple[Called, ...]]:
    """What is looked at of the records of a run."""
    told: list[Told] = []
    ended: list[Called] = []
    begun: dict[str, str] = {}
    replies = 0
    for record in records:
        event = record.get("event")
        if event is None:
            continue
        kind = event["type"]
        replies += kind == "replied"
        if kind == "run_finished" and event["stop"] == "waiting":
            kind = "run_waited"
        if kind == "call_started":
            mark = MARK.search(json.dumps(event["arguments"]))
            # A sub-run's own call is the sub-run's.
            begun[event["call_id"]] = mark[1] if mark and event["name"] == "edge_call" else ""
        elif kind == "call_finished":
            result = event["result"]
            if mark := begun.pop(result["call_id"], ""):
                ended.append(Called(mark, result.get("error") or "ok"))
        # The model counts replies; a turn that was cut off is begun again by the same number.
        turn = replies if kind == "replied" else event.get("turn", 0)
        told.append(Told(record["seq"], record["at"], kind, turn))
    return tuple(told), (*ended, *(Called(mark) for mark in begun.values() if mark))


def marks(house: House) -> Iterator[Mark]:
    """What calls left on the edges."""
    for edge in house.all_edges():
        path = edge.workspace / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            mark, _, at = line.partition(" ")
            yield Mark(edge.name, mark, float(at or 0))


def paid(path: Path) -> Iterator[Paid]:
    """What was asked of the model."""
    for line in path.read_text().splitlines() if path.exists() else ():
        yield Paid(**json.loads(line))
