"""Ratings of runs by users: whether a run was good, and why; evolution learns from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from evoclaw.orchestrator.runs.requests import RunView
from evoclaw.store.sessions.ratings import RatingStore


class Rating(Struct, frozen=True):
    """A user's rating of a run."""

    verdict: Literal["good", "bad"]
    """`good` or `bad`."""
    reason: str
    """In the user's words; may be empty."""
    user: str
    """Who rated the run."""
    at: float
    """Unix time, seconds."""


class RunRatings:
    """Stores what users say of runs; the last word counts."""

    def __init__(self, store: RatingStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    async def give(
        self, tenant: str, user: str, run: RunView, verdict: Literal["good", "bad"], reason: str
    ) -> Rating:
        """Store the rating of a run by a user."""
        rating = Rating(verdict, reason, user, self._clock())
        await self._store.put(tenant, run.session_id, run.run_id, msgspec.json.encode(rating))
        return rating

    async def get(self, tenant: str, run_id: str) -> Rating | None:
        """The rating of a run; None if no user gave any."""
        found = await self._store.get(tenant, run_id)
        return None if found is None else msgspec.json.decode(found, type=Rating)

    async def of_runs(self, tenant: str, run_ids: Sequence[str]) -> dict[str, Rating]:
        """The ratings of those of the runs that have one."""
        found = await self._store.of_runs(tenant, run_ids)
        return {run: msgspec.json.decode(rating, type=Rating) for run, rating in found.items()}

    async def forget(self, tenant: str, session_id: str) -> None:
        """Delete the ratings of the runs of a session."""
        await self._store.forget(tenant, session_id)
