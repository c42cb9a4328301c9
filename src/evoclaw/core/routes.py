"""Routes: which executor runs the calls of which tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from evoclaw.core.ports import Executor, Policy
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import NO_TOOLS, Toolset

SERVICE_MACHINE = "orchestrator"
"""What calls name as their machine if they run in the service itself."""


class Place(StrEnum):
    """Where the calls of a route run."""

    HERE = "here"
    """In this process, or on this machine."""
    EDGE = "edge"
    """On another machine, which records and signs for itself."""
    CALLER = "caller"
    """At the caller who started the run."""
    MODEL = "model"
    """At a model: no tool runs."""


class Route(Struct, frozen=True, eq=False):
    """An executor, and what is special about calls to it."""

    executor: Executor
    place: Place = Place.HERE
    ready: Callable[[], Awaitable[None]] | None = None
    """Returns when the records that led to a call are durable; awaited before each call that does
    more than read on this machine."""
    before: tuple[Policy, ...] | None = None
    """Policies of its own, instead of the pipeline's. Its tools bypass the offer steps, and replace
    tools of the same name."""
    yields: bool = False
    """Its tools are left out where another route has the name: one that does not yield, or an
    earlier one that does. Without it, two tools of one name are an error."""
    machine: str = ""
    """The machine that its calls run on, unless its executor says; empty: this one, unnamed."""


class Routes:
    """The tools of several executors, each with the route to the one that has it."""

    def __init__(self, routes: Iterable[Executor | Route]) -> None:
        found = tuple(route if isinstance(route, Route) else Route(route) for route in routes)
        self._usual = tuple(route for route in found if route.before is None)
        self.direct = tuple(route for route in found if route.before is not None)
        self._seen: list[Sequence[Tool]] = []
        self._tools, self._direct_tools = NO_TOOLS, NO_TOOLS
        self._owners: dict[str, Route] = {}
        self.tools()

    def __iter__(self) -> Iterator[Route]:
        return iter((*self._usual, *self.direct))

    def tools(self) -> tuple[Toolset, Toolset]:
        """The tools of all routes: those under the pipeline's policies, and those with their own.

        Raises `DuplicateTool` if two routes that do not yield have a tool of the same name.
        """
        now = [route.executor.tools() for route in self]
        if len(now) == len(self._seen) and all(
            new is old for new, old in zip(now, self._seen, strict=True)
        ):
            return self._tools, self._direct_tools
        kept, count = self._without_taken_names(now), len(self._usual)
        self._tools = _merged(kept[:count], now[:count])
        self._direct_tools = _merged(kept[count:], now[count:])
        self._owners = {
            tool.name: route for route, tools in zip(self, kept, strict=True) for tool in tools
        }
        self._seen = now
        return self._tools, self._direct_tools

    def _without_taken_names(self, now: Sequence[Sequence[Tool]]) -> list[Sequence[Tool]]:
        """The tools of each route, without those whose name it yields to another route."""
        pairs = list(zip(self, now, strict=True))
        taken = {tool.name for route, tools in pairs if not route.yields for tool in tools}
        kept: list[Sequence[Tool]] = []
        for route, tools in pairs:
            if route.yields:
                free = [tool for tool in tools if tool.name not in taken]
                taken.update(tool.name for tool in free)
                tools = tools if len(free) == len(tools) else free
            kept.append(tools)
        return kept

    def find(self, name: str) -> Route | None:
        """The route to the executor that has a tool."""
        return self._owners.get(name)


def _merged(sets: Sequence[Sequence[Tool]], sources: Sequence[Sequence[Tool]]) -> Toolset:
    if len(sets) == 1:
        return Toolset.of(sets[0])
    return Toolset.shared((tool for tools in sets for tool in tools), sources)
