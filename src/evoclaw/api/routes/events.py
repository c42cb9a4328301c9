"""What changes, as it changes: edges, runs, and what waits for a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, cast

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from evoclaw.api.auth import ANY_CALLER, Need, Who
from evoclaw.api.errors import Refused, absent
from evoclaw.api.needs import Parts
from evoclaw.api.routes.answers import asked, shown
from evoclaw.api.routes.fleet import edge_view, joined
from evoclaw.api.sse import EVENT_STREAM, EventStream, event_stream, frame, streams
from evoclaw.orchestrator.overview.feed import (
    MAX_POLL_INTERVAL_S,
    MIN_POLL_INTERVAL_S,
    Change,
    Feed,
    FeedSource,
    FeedUpdate,
)
from evoclaw.orchestrator.overview.sources import (
    ApprovalSource,
    EdgeSource,
    QuestionSource,
    RunSource,
    store_mark,
)
from evoclaw.orchestrator.people.access import Caller, Scope

TOPICS: Mapping[str, Scope] = {
    "fleet": Scope.FLEET_READ,
    "runs": Scope.RUNS_READ,
    "approvals": Scope.APPROVALS_READ,
    "questions": Scope.APPROVALS_READ,
}
"""What can be watched, and the scope that it needs."""


def feed_of(
    parts: Parts, *, pace: float = MIN_POLL_INTERVAL_S, look: float = MAX_POLL_INTERVAL_S
) -> Feed:
    """The feed of a process: what it has of all that can be watched."""
    sources: dict[str, Callable[[str], FeedSource]] = {}
    changes: list[Change] = []
    if (orchestrator := parts.orchestrator) is not None:
        fleet = orchestrator.fleet
        changes.append(fleet.change)
        sources["fleet"] = lambda _: EdgeSource(fleet, partial(joined, parts), edge_view)
    if (approvals := parts.approvals) is not None:
        sources["approvals"] = lambda tenant: ApprovalSource(approvals, tenant, shown)
    if (talks := parts.talks) is not None:
        sources["questions"] = lambda tenant: QuestionSource(talks.of(tenant), asked)
        if parts.runs is not None:
            changes.append(parts.runs.hub.change)
            sources["runs"] = lambda tenant: RunSource(talks.of(tenant).store)
    return Feed(sources, store_mark(talks), changes, min_interval_s=pace, max_interval_s=look)


def _chosen(feed: Feed, caller: Caller, topics: str) -> tuple[str, ...]:
    """What of it a caller is told; `Refused` if that would be nothing."""
    named = [one.strip() for one in topics.split(",") if one.strip()] or list(TOPICS)
    if unknown := [one for one in named if one not in TOPICS]:
        text = f"no such topic: {unknown[0][:80]!r}; known: {', '.join(TOPICS)}"
        raise Refused(400, "invalid", text)
    allowed = [one for one in TOPICS if one in named and caller.may(TOPICS[one])]
    if not allowed:
        wanted = ", ".join(sorted({TOPICS[one] for one in named}))
        text = f"this needs a token with one of the scopes {wanted}; ask whoever gave you yours"
        raise Refused(403, "forbidden", text, details={"scope": wanted})
    if not (there := tuple(one for one in allowed if one in feed.topics)):
        raise absent(" and ".join(allowed))
    return there


@get(
    "/v1/events",
    scope=ANY_CALLER,
    tags=["events"],
    media_type=EVENT_STREAM,
    responses=streams(
        "An event is named after its topic; its data is `items`, and whether these "
        "are the `whole`. `fleet` and `runs` are told whole at first (of the runs the newest "
        "50), then those that changed; `approvals` and `questions` always whole. Events have "
        "no ids: who comes back is told everything again."
    ),
)
async def watch_all(
    request: Request[Any, Any, Any],
    parts: Need,
    caller: Who,
    topics: Annotated[
        str,
        QueryParameter(
            max_length=200,
            description="Some of `fleet`, `runs`, `approvals`, `questions`, with commas between; "
            "empty is all. What your token does not open is left out.",
        ),
    ] = "",
) -> EventStream:
    """Watch what you may see: edges, runs, and what waits for a person, within a second.

    You are told of your own runs, approvals and questions; an admin of those of the whole tenant.
    """
    feed = cast("Feed", request.app.state["feed"])
    chosen = _chosen(feed, caller, topics)
    return event_stream(request, _frames(feed, parts, caller, chosen))


async def _frames(
    feed: Feed, parts: Parts, caller: Caller, topics: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    if "fleet" in topics and caller.tenant != parts.operator:
        # As in the list of edges: the fleet is the operator's, and others have none.
        topics = tuple(one for one in topics if one != "fleet")
        yield frame("fleet", FeedUpdate((), whole=True))
    owner = None if caller.may(Scope.ADMIN) else caller.principal.user
    async with aclosing(feed.watch(caller.tenant, topics, owner)) as news:
        async for topic, told in news:
            yield frame(topic, told)


ROUTES: tuple[HTTPRouteHandler, ...] = (watch_all,)
