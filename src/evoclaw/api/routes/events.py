"""The event stream of changes: edges, runs, approvals and questions."""

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
"""The topics of the stream, and the scope of each."""


def feed_of(
    parts: Parts, *, pace: float = MIN_POLL_INTERVAL_S, look: float = MAX_POLL_INTERVAL_S
) -> Feed:
    """The change feed of this process, with a source for each topic that it provides."""
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
    """The topics that a caller may watch; `ApiError` if there are none."""
    named = [topic.strip() for topic in topics.split(",") if topic.strip()] or list(TOPICS)
    if unknown := [topic for topic in named if topic not in TOPICS]:
        text = f"Unknown topic {unknown[0][:80]!r}. Known topics: {', '.join(TOPICS)}."
        raise Refused(400, "invalid", text)
    allowed = [topic for topic in TOPICS if topic in named and caller.may(TOPICS[topic])]
    if not allowed:
        wanted = ", ".join(sorted({TOPICS[topic] for topic in named}))
        text = (
            f"The token needs one of the scopes {wanted}. Ask the administrator for such a token."
        )
        raise Refused(403, "forbidden", text, details={"scope": wanted})
    if not (provided := tuple(topic for topic in allowed if topic in feed.topics)):
        raise absent(" and ".join(allowed))
    return provided


@get(
    "/v1/events",
    scope=ANY_CALLER,
    tags=["events"],
    media_type=EVENT_STREAM,
    responses=streams(
        "The event type is the topic; the data has `items`, and `whole` says whether "
        "the list is complete. `fleet` and `runs` start with a complete list (of runs, the newest "
        "50) and then send the changed items; `approvals` and `questions` always send complete "
        "lists. Events have no ids: a new connection starts with complete lists again."
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
            description="Comma-separated: `fleet`, `runs`, `approvals`, `questions`; empty: all. "
            "Topics without the scope of your token are left out.",
        ),
    ] = "",
) -> EventStream:
    """Stream changes of edges, runs, approvals and questions within a second.

    You get your own runs, approvals and questions; an admin gets those of the whole tenant.
    """
    feed = cast("Feed", request.app.state["feed"])
    chosen = _chosen(feed, caller, topics)
    return event_stream(request, _frames(feed, parts, caller, chosen))


async def _frames(
    feed: Feed, parts: Parts, caller: Caller, topics: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    if "fleet" in topics and caller.tenant != parts.operator:
        # As in the list of edges: only the operator's tenant has a fleet.
        topics = tuple(topic for topic in topics if topic != "fleet")
        yield frame("fleet", FeedUpdate((), whole=True))
    owner = None if caller.may(Scope.ADMIN) else caller.principal.user
    async with aclosing(feed.watch(caller.tenant, topics, owner)) as updates:
        async for topic, update in updates:
            yield frame(topic, update)


ROUTES: tuple[HTTPRouteHandler, ...] = (watch_all,)
