"""Collect the history of a fault run: store, watchers, marks, edge journals, the model's log."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from bench.scale.clients import STREAM_TIMEOUT, Load, Service
from bench.scale.consistency import (
    BudgetLimits,
    History,
    Mark,
    ModelRequest,
    Outage,
    RecordSummary,
    StartedCall,
    StoredRunSummary,
)
from bench.scale.deployment import Deployment
from bench.scale.model_process import KEY

MARK = re.compile(r"echo (k[0-9a-f]{10}(?:s\d)?\.\d+\.\d+) ")
READ_CONCURRENCY = 8


async def history(load: Load, outages: list[Outage]) -> History:
    """The whole history, once all runs have ended."""
    deployment, plan = load.deployment, load.deployment.plan
    return History(
        requested=list(load.requested.values()),
        stored=await stored_runs(load.service, load.admin, deployment.folder / "records.jsonl"),
        watched=load.watched,
        marks=list(marks(deployment)),
        model_requests=list(model_requests(deployment.model_log)),
        outages=outages,
        uncollected=[
            f"{edge.name} {call}"
            for edge in deployment.all_edges()
            for call in edge.unacknowledged()
        ],
        limits=BudgetLimits(plan.calls_of_run, plan.turns_of_run, plan.calls_of_user),
    )


async def stored_runs(service: Service, admin: str, log_path: Path) -> list[StoredRunSummary]:
    """Every run with its records, which are also written to a log for debugging."""
    views: list[dict[str, Any]] = []
    before = ""
    while True:
        page = await service.ask("GET", f"/v1/runs?limit=200&before={before}", admin)
        views += page["items"]
        if not (before := page.get("next", "")):
            break
    semaphore = asyncio.Semaphore(READ_CONCURRENCY)

    async def read(view: dict[str, Any]) -> StoredRunSummary:
        async with semaphore:
            records = await _records(service, view["run_id"], admin)
        with log_path.open("a") as log:
            log.writelines(json.dumps(record) + "\n" for record in records)
        key = KEY.search(view.get("asked", ""))
        summaries, calls = summarize(records)
        stop, denied = view.get("stop") or "", sum(map(_is_denied, records))
        reason = records[-1].get("event", {}).get("reason", "") if records else ""
        return StoredRunSummary(
            view["run_id"],
            key[0] if key else "",
            view["state"],
            stop,
            summaries,
            calls,
            denied,
            reason,
            view["session_id"],
        )

    return list(await asyncio.gather(*(read(view) for view in views)))


async def _records(service: Service, run: str, admin: str) -> list[dict[str, Any]]:
    """The records of a run, from the event stream after its end."""
    headers = {"authorization": f"Bearer {admin}"}
    for url in service.order() * 3:
        try:
            path = f"{url}/v1/runs/{run}/events"
            async with service.http.get(path, headers=headers, timeout=STREAM_TIMEOUT) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError):
            continue
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    raise SystemExit(f"cannot read the records of run {run} from any orchestrator")


def _is_denied(record: dict[str, Any]) -> bool:
    event = record.get("event", {})
    return event.get("type") == "call_judged" and event["verdict"] == "deny"


def summarize(
    records: list[dict[str, Any]],
) -> tuple[tuple[RecordSummary, ...], tuple[StartedCall, ...]]:
    """The records and the calls of a run, as far as the checks need them."""
    summaries: list[RecordSummary] = []
    ended: list[StartedCall] = []
    started: dict[str, StartedCall] = {}
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
            arguments = event["arguments"]
            mark = MARK.search(json.dumps(arguments))
            # The call that starts a sub-run has no mark; the sub-run's own calls have.
            if mark and event["name"] == "edge_call":
                call = StartedCall(mark[1], "", arguments["agent_id"], record["at"])
                # Another orchestrator may record the start of the same call again.
                started.setdefault(event["call_id"], call)
        elif kind == "call_finished":
            result = event["result"]
            if call := started.pop(result["call_id"], None):
                outcome = result.get("error") or "ok"
                ended.append(replace(call, outcome=outcome, ended_at=record["at"]))
        # The model log counts replies; an interrupted turn is repeated with the same number.
        turn = replies if kind == "replied" else event.get("turn", 0)
        summaries.append(RecordSummary(record["seq"], record["at"], kind, turn))
    return tuple(summaries), (*ended, *started.values())


def marks(deployment: Deployment) -> Iterator[Mark]:
    """The marks that calls wrote on the edges."""
    for edge in deployment.all_edges():
        path = edge.workspace / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            mark, _, at = line.partition(" ")
            yield Mark(edge.name, mark, float(at or 0))


def model_requests(path: Path) -> Iterator[ModelRequest]:
    """The requests that the model received."""
    for line in path.read_text().splitlines() if path.exists() else ():
        yield ModelRequest(**json.loads(line))
