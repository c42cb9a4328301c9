"""Routes that replay, fork and compare recorded runs, and list their receipts."""

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

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, ErrorBody, require
from evoclaw.api.routes.parameters import (
    IdempotencyKey,
    RunId,
    Text,
    path_id,
)
from evoclaw.api.routes.runs import (
    LOCATION_HEADER,
    SAME_KEY_RESPONSES,
    own_run,
    renumbered_records,
    start_requested,
)
from evoclaw.core.errors import RecordingError
from evoclaw.core.events import CallStarted, Record
from evoclaw.core.forking import fork_messages
from evoclaw.core.messages import JSON, SystemMessage
from evoclaw.core.replay import ReplayResult, verify_replay
from evoclaw.core.run_comparison import Difference, compare
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.receipts.archive import CheckedReceipt
from evoclaw.orchestrator.runs.requests import RunRequest, RunStatus, RunView

TAGS = ["runs"]
MAX_RECORDS = 100_000
"""The limit of records for replay, fork and compare; use `evoclaw replay` for longer runs."""


class ReceiptView(Struct, frozen=True):
    """A device's signed receipt of one call."""

    call_id: str
    """Empty if the run has no such call."""
    request_id: str
    """The request id of the call."""
    agent_id: str
    """The device that signed."""
    chain: str
    """The id of the device's chain of receipts."""
    counter: int
    """The position in the chain, from 1; 0: outside it."""
    hash: str
    """The hash of the receipt."""
    at: float
    """When it arrived, in Unix seconds."""
    valid: bool | None
    """Whether the signature is valid for the device's known key; null if no key is known."""
    receipt: dict[str, JSON]
    """The signed content."""


class ReceiptList(Struct, frozen=True):
    """The receipts of a run, by device, in order."""

    items: tuple[ReceiptView, ...]
    """The receipts."""


class ForkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to fork a run."""

    turn: Annotated[int, Meta(ge=1, le=1_000_000)]
    """The turn to run again; earlier turns are kept."""
    message: Text = ""
    """A new message at this turn; at turn 1 it replaces the original message."""
    model: Annotated[str, Meta(max_length=200)] = ""
    """Overrides the agent's model."""


class RunComparison(Struct, frozen=True):
    """The differences of two runs; ids and times are ignored."""

    same: bool
    """Whether the runs do not differ."""
    differences: tuple[Difference, ...]
    """Those of the whole run first (turn 0), then turn by turn."""


@get("/v1/runs/{run_id:str}/receipts", scope=TokenScope.RUNS_READ, tags=TAGS)
async def list_receipts(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId
) -> ReceiptList:
    """List the receipts of a run's calls; each signature is verified again."""
    view = await own_run(parts, caller, run_id)
    archive = require(parts.receipts, "receipts").of(caller.tenant)
    found = await archive.of_run(view.run_id)
    calls = await _calls(parts, caller.tenant, view.run_id) if found else {}
    return ReceiptList(tuple(_receipt_view(receipt, calls) for receipt in found))


async def _calls(parts: ApiDependencies, tenant: str, run_id: str) -> dict[str, str]:
    """The call ids of a run, by turn and index."""
    found: dict[str, str] = {}
    async with aclosing(renumbered_records(parts, tenant, run_id)) as records:
        async for record in records:
            if isinstance(event := record.event, CallStarted):
                found[_call_position(event.request_id)] = event.call_id
    return found


def _call_position(request_id: str) -> str:
    """The turn and index of a call; all devices that a call goes to share it."""
    return ".".join(part.partition("-")[0] for part in request_id.split(".")[1:3])


def _receipt_view(receipt: CheckedReceipt, calls: Mapping[str, str]) -> ReceiptView:
    return ReceiptView(
        calls.get(_call_position(receipt.request_id), ""),
        receipt.request_id,
        receipt.agent_id,
        receipt.chain,
        receipt.counter,
        receipt.hash,
        receipt.at,
        receipt.valid,
        receipt.receipt,
    )


@post("/v1/runs/{run_id:str}/replay", scope=TokenScope.RUNS_READ, tags=TAGS, status_code=200)
async def replay_run(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId
) -> ReplayResult:
    """Replay a run from its records, without model and tools, and compare the outcome."""
    view = await own_run(parts, caller, run_id)
    if view.state not in (RunStatus.ENDED, RunStatus.WAITING):
        raise ApiError(409, "goes_on", "The run has not ended. Replay it after its end.")
    async with parts.replay_slots:
        return await verify_replay(await _records(parts, caller, run_id))


@post(
    "/v1/runs/{run_id:str}/fork",
    scope=TokenScope.RUNS_WRITE,
    tags=TAGS,
    status_code=201,
    responses=SAME_KEY_RESPONSES,
    response_headers=LOCATION_HEADER,
)
async def fork_run(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    run_id: RunId,
    data: JSONBody[ForkRequest],
    key: IdempotencyKey = "",
) -> Response[RunView]:
    """Fork a run: start a new run from a turn of another run, in a new session."""
    view = await own_run(parts, caller, run_id)
    async with parts.replay_slots:
        records = await _records(parts, caller, run_id)
        try:
            messages = await asyncio.to_thread(fork_messages, records, data.turn, data.message)
        except RecordingError as problem:
            raise ApiError(409, "cannot_fork", str(problem)) from None
    if isinstance(messages[0], SystemMessage):
        messages = messages[1:]  # a new session starts with the agent's current instructions
    conversations = require(parts.conversations, "sessions").of(caller.tenant)
    session = await conversations.store.session(view.session_id)
    run_request = RunRequest(
        on="" if session is None else session.on,
        agent=view.agent,
        title=f"fork of {view.asked or view.run_id}",
        model=data.model,
        messages=messages,
    )
    return await start_requested(parts, caller, run_request, key)


@get(
    "/v1/runs/{run_id:str}/compare/{other:str}",
    scope=TokenScope.RUNS_READ,
    tags=TAGS,
    responses={409: ResponseSpec(ErrorBody, description="One of the runs is too long.")},
)
async def compare_runs(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    run_id: RunId,
    other: Annotated[str, path_id("The id of the run to compare with.")],
) -> RunComparison:
    """Compare two runs turn by turn: messages, calls, results and usage."""
    async with parts.replay_slots:
        a, b = [await _records(parts, caller, id_) for id_ in (run_id, other)]
        found = await asyncio.to_thread(lambda: tuple(compare(a, b)))
    return RunComparison(not found, found)


async def _records(parts: ApiDependencies, caller: Caller, run_id: str) -> Sequence[Record]:
    """All records of a run that the caller may see, numbered as in a recording."""
    view = await own_run(parts, caller, run_id)
    found: list[Record] = []
    async with aclosing(renumbered_records(parts, caller.tenant, view.run_id)) as records:
        async for record in records:
            found.append(record)
            if len(found) > MAX_RECORDS:
                text = (
                    f"The run has more than {MAX_RECORDS} records. "
                    f"Read /v1/runs/{run_id}/records instead."
                )
                raise ApiError(409, "too_long", text)
    return found


ROUTES: tuple[HTTPRouteHandler, ...] = (list_receipts, replay_run, fork_run, compare_runs)
