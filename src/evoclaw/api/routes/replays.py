"""Runs that were: what devices signed in them, played again, gone another way, compared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Annotated

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import ErrorBody, Refused, given
from evoclaw.api.needs import Parts
from evoclaw.api.routes.runs import BEGUN_BEFORE, LOCATION, begin, numbered, own_run
from evoclaw.api.routes.shapes import Id, Key, Text
from evoclaw.core.comparing import Difference, compare
from evoclaw.core.errors import RecordingError
from evoclaw.core.events import CallStarted, Record
from evoclaw.core.forking import forked
from evoclaw.core.messages import JSON, SystemMessage
from evoclaw.core.replaying import Played, play
from evoclaw.orchestrator.errands import Errand, RunView, State
from evoclaw.orchestrator.people.access import Caller, Scope
from evoclaw.orchestrator.receipts.archive import CheckedReceipt

TAGS = ["runs"]
MOST = 100_000
"""Records of a run that is looked at as a whole; a longer one is for `evoclaw replay`."""


class ReceiptView(Struct, frozen=True):
    """What a device signed about one call of a run."""

    call_id: str
    """Empty if the run knows of no such call."""
    request_id: str
    agent_id: str
    chain: str
    counter: int
    hash: str
    at: float
    valid: bool | None
    """Checked now, with the key that the device is known by; null if it is known by none."""
    receipt: dict[str, JSON]
    """As it was signed."""


class ReceiptList(Struct, frozen=True):
    """The receipts of a run, by device and in their order."""

    items: tuple[ReceiptView, ...]


class Forking(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a run is to go another way."""

    turn: Annotated[int, Meta(ge=1, le=1_000_000)]
    """The turn to have anew; what was before it is kept."""
    message: Text = ""
    """What is said there; at turn 1, instead of the task."""
    model: Annotated[str, Meta(max_length=200)] = ""
    """Instead of the agent's."""


class Comparison(Struct, frozen=True):
    """Two runs beside each other; ids and times never count."""

    same: bool
    differences: tuple[Difference, ...]
    """Of the run as a whole first (turn 0), then turn by turn."""


@get("/v1/runs/{run_id:str}/receipts", scope=Scope.RUNS_READ, tags=TAGS)
async def list_receipts(parts: Need, caller: Who, run_id: Id) -> ReceiptList:
    """What devices signed about the calls of a run, each checked anew."""
    view = await own_run(parts, caller, run_id)
    archive = given(parts.receipts, "receipts").of(caller.tenant)
    found = await archive.of_run(view.run_id)
    calls = await _calls(parts, caller.tenant, view.run_id) if found else {}
    return ReceiptList(tuple(_receipt(one, calls) for one in found))


async def _calls(parts: Parts, tenant: str, run_id: str) -> dict[str, str]:
    """The calls of a run, by their place in it."""
    found: dict[str, str] = {}
    async with aclosing(numbered(parts, tenant, run_id)) as records:
        async for record in records:
            if isinstance(event := record.event, CallStarted):
                found[_place(event.request_id)] = event.call_id
    return found


def _place(request_id: str) -> str:
    """The turn and the index of a call; the devices that a call goes to share one."""
    return ".".join(part.partition("-")[0] for part in request_id.split(".")[1:3])


def _receipt(proof: CheckedReceipt, calls: Mapping[str, str]) -> ReceiptView:
    return ReceiptView(
        calls.get(_place(proof.request_id), ""),
        proof.request_id,
        proof.agent_id,
        proof.chain,
        proof.counter,
        proof.hash,
        proof.at,
        proof.valid,
        proof.receipt,
    )


@post("/v1/runs/{run_id:str}/replay", scope=Scope.RUNS_READ, tags=TAGS, status_code=200)
async def replay_run(parts: Need, caller: Who, run_id: Id) -> Played:
    """Play a run again from its records, without its model and tools: does it come out the same?"""
    view = await own_run(parts, caller, run_id)
    if view.state not in (State.ENDED, State.WAITING):
        raise Refused(409, "goes_on", "the run still goes on; play it again when it has ended")
    async with parts.replaying:
        return await play(await _records(parts, caller, run_id))


@post(
    "/v1/runs/{run_id:str}/fork",
    scope=Scope.RUNS_WRITE,
    tags=TAGS,
    status_code=201,
    responses=BEGUN_BEFORE,
    response_headers=LOCATION,
)
async def fork_run(
    parts: Need, caller: Who, run_id: Id, data: JSONBody[Forking], key: Key = ""
) -> Response[RunView]:
    """Begin a run of your own where another one stood before a turn, in a session of its own."""
    view = await own_run(parts, caller, run_id)
    async with parts.replaying:
        records = await _records(parts, caller, run_id)
        try:
            messages = await asyncio.to_thread(forked, records, data.turn, data.message)
        except RecordingError as problem:
            raise Refused(409, "cannot_fork", str(problem)) from None
    if isinstance(messages[0], SystemMessage):
        messages = messages[1:]  # a new session begins with the agent's instructions of today
    errand = Errand(
        agent=view.agent,
        title=f"fork of {view.asked or view.run_id}",
        model=data.model,
        messages=messages,
    )
    return await begin(parts, caller, errand, key)


@get(
    "/v1/runs/{run_id:str}/compare/{other:str}",
    scope=Scope.RUNS_READ,
    tags=TAGS,
    responses={409: ResponseSpec(ErrorBody, description="One of them is too long for this.")},
)
async def compare_runs(parts: Need, caller: Who, run_id: Id, other: Id) -> Comparison:
    """Compare two runs, turn by turn: what was said, called, answered and spent."""
    async with parts.replaying:
        a, b = [await _records(parts, caller, one) for one in (run_id, other)]
        found = await asyncio.to_thread(lambda: tuple(compare(a, b)))
    return Comparison(not found, found)


async def _records(parts: Parts, caller: Caller, run_id: str) -> Sequence[Record]:
    """All of a run that the caller may see, as a recording has it."""
    view = await own_run(parts, caller, run_id)
    found: list[Record] = []
    async with aclosing(numbered(parts, caller.tenant, view.run_id)) as records:
        async for record in records:
            found.append(record)
            if len(found) > MOST:
                text = f"the run has more than {MOST} records; take /v1/runs/{run_id}/records"
                raise Refused(409, "too_long", text)
    return found


ROUTES: tuple[HTTPRouteHandler, ...] = (list_receipts, replay_run, fork_run, compare_runs)
