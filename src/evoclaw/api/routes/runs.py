"""Routes of runs: start, list, watch, steer and cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from itertools import count
from typing import Annotated, Any, Literal

from litestar import Request, Response, get, post
from litestar.datastructures import ResponseHeader
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, QueryParameter
from litestar.response import Stream
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.images import AttachedImage, image_blocks
from evoclaw.api.routes.parameters import (
    AfterRecord,
    AgentFilter,
    Cursor,
    EdgeChoice,
    IdempotencyKey,
    LastEventId,
    OptionalId,
    PageLimit,
    Reason,
    RunId,
    SessionFilter,
    ShortText,
    Text,
    id_filter,
)
from evoclaw.api.sse import EVENT_STREAM, EventStream, event_stream, event_stream_responses, frame
from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import Record
from evoclaw.core.images import MAX_ATTACHED_IMAGES
from evoclaw.core.record_encoding import record_json
from evoclaw.evolution.outcomes import OutcomeFold, RunOutcome
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.people.ratings import Rating
from evoclaw.orchestrator.runs.hub import WatcherTooSlow
from evoclaw.orchestrator.runs.requests import AgentRunCount, RunRequest, RunStatus, RunView

TAGS = ["runs"]
NDJSON_MEDIA_TYPE = "application/x-ndjson"
SAME_KEY_RESPONSES = {
    200: ResponseSpec(RunView, description="The run that was started before with the same key.")
}
LOCATION_HEADER = (ResponseHeader(name="location", required=False, documentation_only=True),)
"""The header with the path of the started run."""
RECORD_PAGE_SIZE = 500
"""Records per read from the store."""


class NewRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to start."""

    message: Annotated[Text, Meta(min_length=1)]
    """The task, in plain words."""
    session_id: OptionalId = ""
    """An existing session; empty: a new one."""
    agent: OptionalId = ""
    """The agent of a new session; empty: the default agent."""
    title: ShortText = ""
    """The title of a new session."""
    model: Annotated[str, Meta(max_length=200)] = ""
    """Overrides the agent's model."""
    images: Annotated[tuple[AttachedImage, ...], Meta(max_length=MAX_ATTACHED_IMAGES)] = ()
    """Images that belong to the message."""
    max_turns: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    """Lowers the agent's turn limit; cannot raise it."""
    max_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """Lowers the agent's time limit; cannot raise it."""
    on: EdgeChoice = ""
    """The edge that the session works on from this run on, `any` or `*`; empty: no change."""


class RatedRun(RunView, frozen=True, omit_defaults=True):
    """A run, and what a person said of it."""

    rating: Rating | None = None
    """The rating; null: none was given."""


class RunPage(Struct, frozen=True):
    """A page of runs, the newest first."""

    items: tuple[RatedRun, ...]
    """The runs."""
    next: str = ""
    """The value of `before` for the next page; empty on the last page."""


class RunCounts(Struct, frozen=True):
    """The runs of each agent."""

    items: tuple[AgentRunCount, ...]
    """One item for each agent that ran."""


class CancelResult(Struct, frozen=True):
    """The result of a cancellation."""

    cancelled: bool
    """False if it had already ended."""


class SteeringMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message for a run that has not ended."""

    message: Annotated[Text, Meta(min_length=1)]
    """The text of the message."""


class RatedOutcome(Struct, frozen=True):
    """The outcome of a run, and what a person said of it."""

    outcome: RunOutcome
    """What its records say."""
    rating: Rating | None
    """The rating; null: none was given."""


class RatingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's rating of a run."""

    verdict: Literal["good", "bad"]
    """Whether the run was good."""
    reason: Reason = ""
    """Why, in the person's own words."""


async def own_run(parts: ApiDependencies, caller: Caller, run_id: str) -> RunView:
    """A run that the caller may see; `ApiError` 404 for any other."""
    view = await require(parts.runs, "runs").get(caller.tenant, run_id)
    if view is None or not is_own(caller, view.owner):
        raise not_found("run")
    return view


async def check_own_run(parts: ApiDependencies, caller: Caller, run_id: str) -> None:
    """`ApiError` 404 unless the caller may see the run."""
    owner = await require(parts.runs, "runs").owner(caller.tenant, run_id)
    if owner is None or not is_own(caller, owner):
        raise not_found("run")


def is_own(caller: Caller, owner: str) -> bool:
    """Whether a caller may see the data of a user of its tenant."""
    return owner == caller.principal.user or caller.may(TokenScope.ADMIN)


@post(
    "/v1/runs",
    scope=TokenScope.RUNS_WRITE,
    tags=TAGS,
    status_code=201,
    responses=SAME_KEY_RESPONSES,
    response_headers=LOCATION_HEADER,
)
async def start_run(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    data: JSONBody[NewRun],
    key: IdempotencyKey = "",
) -> Response[RunView]:
    """Start a run. It is stored before the response, and needs no watcher to continue."""
    run_request = await _run_request(parts, caller, data)
    return await start_requested(parts, caller, run_request, key)


async def start_requested(
    parts: ApiDependencies, caller: Caller, run_request: RunRequest, key: str
) -> Response[RunView]:
    """Start the run of a run request; the same key again returns the same run."""
    runs = require(parts.runs, "runs")
    if run_request.images:
        agent = run_request.agent or runs.default_agent
        if why := parts.image_problem(agent, run_request.model):
            raise ApiError(400, "no_images", f"The images cannot be sent: {why}.")
    view, fresh = await runs.start(caller.principal, run_request, key=key)
    headers = {"location": f"/v1/runs/{view.run_id}"}
    return Response(view, status_code=201 if fresh else 200, headers=headers)


async def _run_request(
    parts: ApiDependencies, caller: Caller, data: JSONBody[NewRun]
) -> RunRequest:
    agent = data.agent
    if data.session_id:
        listed = (
            await require(parts.conversations, "sessions")
            .of(caller.tenant)
            .store.summary(data.session_id)
        )
        if listed is None or not is_own(caller, listed.session.owner):
            raise not_found("session")
        agent = listed.session.agent
    return RunRequest(
        message=data.message,
        session_id=data.session_id,
        agent=agent,
        title=data.title,
        model=data.model,
        settings=_narrowed_settings(parts, agent, data),
        images=image_blocks(data.images),
        on=data.on,
    )


def _narrowed_settings(
    parts: ApiDependencies, agent: str, data: JSONBody[NewRun]
) -> LoopSettings | None:
    """The agent's settings with the lower limits of the request; None if it sets none."""
    if data.max_turns is None and data.max_seconds is None:
        return None
    known = require(parts.conversations, "sessions").agents.get(
        agent or require(parts.runs, "runs").default_agent
    )
    found = LoopSettings() if known is None else known.settings
    turns, seconds = found.max_turns, found.max_seconds
    return replace(
        found,
        max_turns=turns if data.max_turns is None else min(turns, data.max_turns),
        max_seconds=seconds if data.max_seconds is None else min(seconds, data.max_seconds),
    )


@get("/v1/runs", scope=TokenScope.RUNS_READ, tags=TAGS)
async def list_runs(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    session_id: SessionFilter = "",
    run_state: Annotated[
        RunStatus | None, QueryParameter(name="state", description="Only runs in this state.")
    ] = None,
    parent_run: Annotated[str, id_filter("Only sub-runs of this run; empty: all.")] = "",
    before: Cursor = "",
    limit: PageLimit = 50,
    agent: AgentFilter = "",
) -> RunPage:
    """List your runs, the newest first; an admin sees those of the whole tenant."""
    owner = None if caller.may(TokenScope.ADMIN) else caller.principal.user
    found = await require(parts.runs, "runs").list(
        caller.tenant,
        session_id=session_id,
        state=run_state,
        owner=owner,
        parent_run=parent_run,
        before=before,
        limit=limit,
        agent=agent,
    )
    items = await _rated(parts, caller, found)
    return RunPage(tuple(items), found[-1].run_id if len(found) == limit else "")


async def _rated(
    parts: ApiDependencies, caller: Caller, views: Sequence[RunView]
) -> Sequence[RatedRun]:
    """The runs with their ratings."""
    found: Mapping[str, Rating] = {}
    if parts.ratings is not None:
        found = await parts.ratings.of_runs(caller.tenant, [view.run_id for view in views])
    return [RatedRun(**asdict(view), rating=found.get(view.run_id)) for view in views]


@get("/v1/run-counts", scope=TokenScope.RUNS_READ, tags=TAGS)
async def count_runs(parts: InjectedDependencies, caller: InjectedCaller) -> RunCounts:
    """Count your runs by agent; an admin counts those of the whole tenant."""
    owner = None if caller.may(TokenScope.ADMIN) else caller.principal.user
    return RunCounts(tuple(await require(parts.runs, "runs").counts(caller.tenant, owner)))


@get("/v1/runs/{run_id:str}", scope=TokenScope.RUNS_READ, tags=TAGS)
async def show_run(parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId) -> RatedRun:
    """Show the status of a run, its answer once it has ended, and its rating."""
    (rated,) = await _rated(parts, caller, [await own_run(parts, caller, run_id)])
    return rated


@get(
    "/v1/runs/{run_id:str}/events",
    scope=TokenScope.RUNS_READ,
    tags=TAGS,
    media_type=EVENT_STREAM,
    responses=event_stream_responses(
        "One event per record: `id` is its number, `event` its type, `data` the record as JSON. "
        "A client that reads too slowly gets `dropped` with `after`, the last number it got."
    ),
)
async def watch_run(
    request: Request[Any, Any, Any],
    parts: InjectedDependencies,
    caller: InjectedCaller,
    run_id: RunId,
    after: AfterRecord = 0,
    last_event_id: LastEventId = 0,
    follow: Annotated[
        bool, QueryParameter(description="Keep the stream open while the run waits for a person.")
    ] = False,
) -> EventStream:
    """Stream the records of a run: the past ones, then new ones as they happen."""
    await check_own_run(parts, caller, run_id)
    frames = _frames(parts, caller.tenant, run_id, last_event_id or after, follow)
    return event_stream(request, frames)


async def _frames(
    parts: ApiDependencies, tenant: str, run_id: str, after: int, follow: bool
) -> AsyncGenerator[bytes, None]:
    records = require(parts.runs, "runs").watch(tenant, run_id, after, follow=follow)
    try:
        async with aclosing(records):
            async for record in records:
                yield record_frame(record)
    except WatcherTooSlow as slow:
        yield frame("dropped", {"after": slow.after})


def record_frame(record: Record) -> bytes:
    """A record as a server-sent event; the bytes of `frame`, without its detours."""
    return b"id: %d%b%b\n\n" % (record.seq, event_lines(type(record.event)), record_json(record))


@cache
def event_lines(kind: type[Struct]) -> bytes:
    """What is between the number and the data of a server-sent event of this type."""
    return f"\nevent: {kind.__struct_config__.tag}\ndata: ".encode()


@get(
    "/v1/runs/{run_id:str}/records",
    scope=TokenScope.RUNS_READ,
    tags=TAGS,
    media_type=NDJSON_MEDIA_TYPE,
    responses={
        200: ResponseSpec(
            str,
            media_type=NDJSON_MEDIA_TYPE,
            generate_examples=False,
            description="One record a line.",
        )
    },
)
async def read_records(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId
) -> Stream:
    """Read the records of a run as a recording for `evoclaw replay`."""
    await check_own_run(parts, caller, run_id)
    records = renumbered_records(parts, caller.tenant, run_id)

    async def lines() -> AsyncGenerator[bytes, None]:
        async with aclosing(records):
            async for record in records:
                yield record_json(record) + b"\n"

    return Stream(lines(), media_type=NDJSON_MEDIA_TYPE)


async def renumbered_records(
    parts: ApiDependencies, tenant: str, run_id: str
) -> AsyncGenerator[Record, None]:
    """The records of a run so far, numbered without gaps as in a recording."""
    store = require(parts.conversations, "sessions").of(tenant).store
    # An interrupted run skips numbers; a recording has no gaps.
    numbers, after = count(1), 0
    while page := await store.records(run_id, after, RECORD_PAGE_SIZE):
        after = page[-1].seq
        for record in page:
            yield replace(record, seq=next(numbers))


@post("/v1/runs/{run_id:str}/cancel", scope=TokenScope.RUNS_WRITE, tags=TAGS, status_code=200)
async def cancel_run(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId
) -> CancelResult:
    """Cancel a run and everything that it started."""
    await check_own_run(parts, caller, run_id)
    return CancelResult(await require(parts.runs, "runs").cancel(caller.tenant, run_id))


@post("/v1/runs/{run_id:str}/messages", scope=TokenScope.RUNS_WRITE, tags=TAGS, status_code=202)
async def steer_run(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    run_id: RunId,
    data: JSONBody[SteeringMessage],
) -> RunView:
    """Steer a run: the model reads the message before the run ends."""
    view = await own_run(parts, caller, run_id)
    if view.state is RunStatus.ENDED:
        text = "The run has ended. Start a new run in its session."
        raise ApiError(409, "ended", text, details={"session_id": view.session_id})
    await require(parts.runs, "runs").steer(caller.tenant, view.run_id, data.message)
    return await own_run(parts, caller, run_id)


@get("/v1/runs/{run_id:str}/outcome", scope=TokenScope.RUNS_READ, tags=TAGS)
async def show_outcome(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId
) -> RatedOutcome:
    """Show the outcome of a run: errors, denials, retries, corrections, and its rating."""
    view, fold = await own_run(parts, caller, run_id), OutcomeFold()
    async with aclosing(renumbered_records(parts, caller.tenant, view.run_id)) as records:
        async for record in records:
            fold.receive(record)
    rating = None if parts.ratings is None else await parts.ratings.get(caller.tenant, view.run_id)
    return RatedOutcome(fold.outcome(), rating)


@post("/v1/runs/{run_id:str}/rating", scope=TokenScope.HUMAN, tags=TAGS, status_code=200)
async def rate_run(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    run_id: RunId,
    data: JSONBody[RatingRequest],
) -> Rating:
    """Rate a run as good or bad. Only a person may; the last rating of a run counts."""
    view = await own_run(parts, caller, run_id)
    return await require(parts.ratings, "rating").give(
        caller.tenant, caller.principal.user, view, data.verdict, data.reason
    )


@get("/v1/runs/{run_id:str}/rating", scope=TokenScope.RUNS_READ, tags=TAGS)
async def show_rating(parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId) -> Rating:
    """Show the rating of a run."""
    view = await own_run(parts, caller, run_id)
    found = await require(parts.ratings, "rating").get(caller.tenant, view.run_id)
    if found is None:
        raise not_found("rating of this run")
    return found


ROUTES: tuple[HTTPRouteHandler, ...] = (
    start_run,
    list_runs,
    count_runs,
    show_run,
    watch_run,
    read_records,
    cancel_run,
    steer_run,
    rate_run,
    show_rating,
    show_outcome,
)
