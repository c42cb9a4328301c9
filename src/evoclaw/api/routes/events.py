"""The event stream of changes: edges, runs, approvals and questions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, cast

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from evoclaw.api.auth import ANY_CALLER, InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, unavailable
from evoclaw.api.routes.approvals import approval_view, question_view
from evoclaw.api.routes.fleet import edge_view, paired_devices
from evoclaw.api.routes.governance import stop_view, visible_stops
from evoclaw.api.sse import EVENT_STREAM, EventStream, event_stream, event_stream_responses, frame
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
    StopSource,
    store_mark,
)
from evoclaw.orchestrator.people.access import Caller, TokenScope

TOPICS: Mapping[str, TokenScope] = {
    "fleet": TokenScope.FLEET_READ,
    "runs": TokenScope.RUNS_READ,
    "approvals": TokenScope.APPROVALS_READ,
    "questions": TokenScope.APPROVALS_READ,
    "stops": TokenScope.RUNS_READ,
}
"""The topics of the stream, and the scope of each."""


def make_feed(
    parts: ApiDependencies,
    *,
    min_interval_s: float = MIN_POLL_INTERVAL_S,
    max_interval_s: float = MAX_POLL_INTERVAL_S,
) -> Feed:
    """The change feed of this process, with a source for each topic that it provides."""
    sources: dict[str, Callable[[str], FeedSource]] = {}
    changes: list[Change] = []
    if (orchestrator := parts.orchestrator) is not None:
        fleet = orchestrator.fleet
        changes.append(fleet.wait_for_change)
        show = partial(edge_view, default=orchestrator.default_edge)
        sources["fleet"] = lambda _: EdgeSource(fleet, partial(paired_devices, parts), show)
    if (approvals := parts.approvals) is not None:
        sources["approvals"] = lambda tenant: ApprovalSource(approvals, tenant, approval_view)
    if (talks := parts.conversations) is not None:
        sources["questions"] = lambda tenant: QuestionSource(talks.of(tenant), question_view)
        if parts.runs is not None:
            changes.append(parts.runs.hub.wait_for_change)
            sources["runs"] = lambda tenant: RunSource(talks.of(tenant).store)
    if (stops := parts.stops) is not None:
        sources["stops"] = lambda tenant: StopSource(
            partial(visible_stops, stops, is_operator=tenant == parts.operator_tenant), stop_view
        )
    return Feed(
        sources,
        store_mark(talks),
        changes,
        min_interval_s=min_interval_s,
        max_interval_s=max_interval_s,
    )


def _select_topics(feed: Feed, caller: Caller, topics: str) -> tuple[str, ...]:
    """The topics that a caller may watch; `ApiError` if there are none."""
    named = [topic.strip() for topic in topics.split(",") if topic.strip()] or list(TOPICS)
    if unknown := [topic for topic in named if topic not in TOPICS]:
        text = f"Unknown topic {unknown[0][:80]!r}. Known topics: {', '.join(TOPICS)}."
        raise ApiError(400, "invalid", text)
    allowed = [topic for topic in TOPICS if topic in named and caller.may(TOPICS[topic])]
    if not allowed:
        wanted = ", ".join(sorted({TOPICS[topic] for topic in named}))
        text = (
            f"The token needs one of the scopes {wanted}. Ask the administrator for such a token."
        )
        raise ApiError(403, "forbidden", text, details={"scope": wanted})
    if not (provided := tuple(topic for topic in allowed if topic in feed.topics)):
        raise unavailable(" and ".join(allowed))
    return provided


@get(
    "/v1/events",
    scope=ANY_CALLER,
    tags=["events"],
    media_type=EVENT_STREAM,
    responses=event_stream_responses(
        "The event type is the topic; the data has `items`, and `whole` says whether "
        "the list is complete. `fleet` and `runs` start with a complete list (of runs, the newest "
        "50) and then send the changed items; `approvals`, `questions` and `stops` always send "
        "complete lists. Events have no ids: a new connection starts with complete lists again."
    ),
)
async def watch_events(
    request: Request[Any, Any, Any],
    parts: InjectedDependencies,
    caller: InjectedCaller,
    topics: Annotated[
        str,
        QueryParameter(
            max_length=200,
            description="Comma-separated: `fleet`, `runs`, `approvals`, `questions`, `stops`; "
            "empty: all. Topics without the scope of your token are left out.",
        ),
    ] = "",
) -> EventStream:
    """Stream changes of edges, runs, approvals and questions within a second.

    You get your own runs, approvals and questions; an admin gets those of the whole tenant.
    """
    feed = cast("Feed", request.app.state["feed"])
    chosen = _select_topics(feed, caller, topics)
    return event_stream(request, _frames(feed, parts, caller, chosen))


async def _frames(
    feed: Feed, parts: ApiDependencies, caller: Caller, topics: tuple[str, ...]
) -> AsyncGenerator[bytes, None]:
    if "fleet" in topics and caller.tenant != parts.operator_tenant:
        # As in the list of edges: only the operator's tenant has a fleet.
        topics = tuple(topic for topic in topics if topic != "fleet")
        yield frame("fleet", FeedUpdate((), whole=True))
    owner = None if caller.may(TokenScope.ADMIN) else caller.principal.user
    async with aclosing(feed.watch(caller.tenant, topics, owner)) as updates:
        async for topic, update in updates:
            yield frame(topic, update)


ROUTES: tuple[HTTPRouteHandler, ...] = (watch_events,)
