"""The runs of real sessions: their figures by genome, and their records."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from evoclaw.core.events import Record, RunStarted, StopReason
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.messages import Reply, ToolResult, UserMessage
from evoclaw.evolution.outcomes import OutcomeFold
from evoclaw.evolution.proposals import RunTrace
from evoclaw.evolution.rollout import RunFigures
from evoclaw.store.metrics.store import RUNNING, MetricsStore, MetricsWindow
from evoclaw.store.metrics.tables import RunRow
from evoclaw.store.sessions.sessions import SessionStore

MAX_BASELINE_RUNS = 200
"""The newest runs of a genome that a candidate is compared with."""
MAX_TRACES = 50
"""The newest runs that a proposer sees."""
_UNFINISHED = frozenset({RUNNING, StopReason.WAITING})
_NO_FAILURE = frozenset({StopReason.COMPLETED, StopReason.CANCELLED})
"""A person's cancellation says nothing about the agent."""


class RunComment(Struct, frozen=True):
    """A person's rating of a run."""

    verdict: Literal["good", "bad"]
    reason: str = ""


RatingsOf: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Mapping[str, RunComment]]]
"""The ratings of those runs of a tenant that have one, by their ids."""
OPERATOR = LOCAL_PRINCIPAL.tenant


class RealRuns:
    """The runs of an agent: figures of some tenants, records of the operator's only."""

    def __init__(
        self,
        agent: str,
        metrics: MetricsStore,
        sessions: SessionStore,
        ratings_of: RatingsOf,
        *,
        tenants: Callable[[], Sequence[str]] = lambda: (OPERATOR,),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the parts.

        Args:
            agent: Whose runs.
            metrics: Their figures.
            sessions: Their records, of the operator's tenant.
            ratings_of: What people said of them.
            tenants: Whose runs are counted, as of now.
            clock: The time in seconds since 1970.
        """
        self._agent, self._metrics, self._sessions = agent, metrics, sessions
        self._ratings_of, self._tenants, self._clock = ratings_of, tenants, clock

    async def figures(
        self, genome: str, *, since: float = 0.0, until: float | None = None, limit: int
    ) -> RunFigures:
        """The figures of the first ended runs with a genome after a time."""
        return await self._figures(genome, since, until, limit, newest=False)

    async def newest_figures(
        self, genome: str, *, until: float | None = None, limit: int = MAX_BASELINE_RUNS
    ) -> RunFigures:
        """The figures of the last ended runs with a genome before a time."""
        return await self._figures(genome, 0.0, until, limit, newest=True)

    async def traces(self, genome: str, limit: int = MAX_TRACES) -> list[RunTrace]:
        """The newest runs with a genome, without sub-runs, the newest first."""
        found: list[RunTrace] = []
        for row, _ in await self._metrics.runs_with(
            self._window(OPERATOR, 0.0, None), genome, 2 * limit, newest=True
        ):
            if row.parent_run or row.stop in _UNFINISHED or len(found) >= limit:
                continue
            records = tuple(await self._sessions.records(row.run_id))
            fold = OutcomeFold()
            for record in records:
                fold.receive(record)
            rating = (await self._ratings_of(OPERATOR, [row.run_id])).get(row.run_id)
            found.append(
                RunTrace(
                    run=row.run_id,
                    outcome=fold.outcome(),
                    records=records,
                    rating="" if rating is None else rating.verdict,
                    comment="" if rating is None else rating.reason,
                )  # fmt: skip
            )
        return found

    async def _figures(
        self, genome: str, since: float, until: float | None, limit: int, *, newest: bool
    ) -> RunFigures:
        rows: list[tuple[RunRow, int, RunComment | None]] = []
        for tenant in self._tenants():
            found = await self._metrics.runs_with(
                self._window(tenant, since, until), genome, limit, newest=newest
            )
            ratings = await self._ratings_of(tenant, [row.run_id for row, _ in found])
            rows += [(row, denied, ratings.get(row.run_id)) for row, denied in found]
        rows.sort(key=lambda each: each[0].at, reverse=newest)
        ended = [each for each in rows[:limit] if each[0].stop not in _UNFINISHED]
        return RunFigures(
            runs=len(ended),
            failed=sum(row.stop not in _NO_FAILURE for row, _, _ in ended),
            denied=sum(denied for _, denied, _ in ended),
            cost=sum(row.cost for row, _, _ in ended),
            bad=sum(rating is not None and rating.verdict == "bad" for *_, rating in ended),
        )

    def _window(self, tenant: str, since: float, until: float | None) -> MetricsWindow:
        end = self._clock() + 1.0 if until is None else until
        return MetricsWindow(tenant, since, end, agent=self._agent)


def first_input(records: tuple[Record, ...]) -> str:
    """What the user said, if the run is the first one of its session; else empty."""
    started = next((r.event for r in records if isinstance(r.event, RunStarted)), None)
    if started is None or any(isinstance(m, Reply | ToolResult) for m in started.messages):
        return ""
    # Notes from the memory come before it.
    said = [m.text for m in started.messages if isinstance(m, UserMessage)]
    return said[-1] if said else ""
