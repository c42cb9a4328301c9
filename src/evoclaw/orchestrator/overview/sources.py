"""Where a feed looks: the runs, approvals, questions and edges that a tenant has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from evoclaw.orchestrator.errands import RunView
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.overview.feed import FeedItem
from evoclaw.orchestrator.people.approvals import Approvals, Case
from evoclaw.orchestrator.people.questions import Question
from evoclaw.orchestrator.runs.viewing import Views
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.store.databases.changes import ENDING, Mark, Stands, mark_of, stands_of
from evoclaw.store.sessions.sessions import SessionStore

D = TypeVar("D")

INITIAL_RUNS = 50
"""Runs that a newcomer is told."""
NEWEST_RUNS = 100
"""Runs that are looked at whatever they do."""
MAX_OPEN_RUNS = 500
"""And of those that are queued or go on."""
MAX_FOLLOWED_RUNS = 200
"""And of those that were seen open and are neither any more."""
VIEWS_REUSE_COUNT = 1_000
"""Runs that are shown before what is known of their sessions is forgotten."""


def store_mark(talks: Conversations | None) -> Callable[[], Awaitable[Mark]]:
    """What gives another mark whenever something was written; without a store, each time."""
    numbers = count()

    async def mark() -> Mark:
        if talks is None:
            return next(numbers), ""
        return await mark_of(talks.store.database)

    return mark


def _item(id_: str, owner: str | None, view: Struct) -> FeedItem:
    return FeedItem(id_, owner, Raw(msgspec.json.encode(view)))


class RunSource:
    """The runs: the newest, and whichever go on or wait."""

    always_whole = False

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._views, self._shown = Views(store), 0
        self._known: dict[str, Stands] | None = None
        self._unlisted: list[str] = []
        """Runs that are not over, and that no list may have the next time."""

    def is_due(self, written: bool) -> bool:
        """Whether anything was written."""
        return written

    async def look(self) -> Sequence[FeedItem]:
        """Those that stand otherwise than before."""
        store = self._store
        known = await stands_of(
            store.database, store.tenant, NEWEST_RUNS, MAX_OPEN_RUNS, self._unlisted
        )
        before = known if self._known is None else self._known
        changed = [id_ for id_, stands in known.items() if before.get(id_) != stands]
        items = [await self._item(run_id) for run_id in reversed(changed)]
        self._known = known
        going = [id_ for id_, stands in known.items() if stands[ENDING] in (None, "waiting")]
        self._unlisted = going[:MAX_FOLLOWED_RUNS]
        return [one for one in items if one is not None]

    async def _item(self, run_id: str) -> FeedItem | None:
        await asyncio.sleep(0)  # there may be hundreds: others go on in between
        run = await self._store.run(run_id)
        if run is None:
            return None  # it was forgotten meanwhile
        self._shown += 1
        if self._shown % VIEWS_REUSE_COUNT == 0:
            self._views = Views(self._store)
        return _run_item(await self._views.of(run))

    async def whole(self, owner: str | None) -> Sequence[FeedItem]:
        """The newest ones, the newest first."""
        views = await Views(self._store).list("", None, owner, "", INITIAL_RUNS)
        return [_run_item(view) for view in views]


def _run_item(view: RunView) -> FeedItem:
    return _item(view.run_id, view.owner, view)


class ApprovalSource:
    """The calls that wait for a person."""

    always_whole = True

    def __init__(
        self,
        approvals: Approvals,
        tenant: str,
        show: Callable[[Case], Struct],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._approvals, self._tenant = approvals, tenant
        self._show, self._clock = show, clock
        self._cases: Sequence[Case] | None = None
        self._items: Sequence[FeedItem] = ()

    def is_due(self, written: bool) -> bool:
        """Whether anything was written, or one of them is not to be answered any more."""
        now, cases = self._clock(), self._cases or ()
        return written or any(case.asking.expires_at <= now for case in cases)

    async def look(self) -> Sequence[FeedItem]:
        """All of them, and that something changed if nothing is left; nothing if none did."""
        cases = await self._approvals.waiting(self._tenant)
        if cases == self._cases:
            return ()
        gone, self._cases = self._items, cases
        self._items = [
            _item(case.asking.id, case.asking.scope.user, self._show(case)) for case in cases
        ]
        return self._items or gone

    async def whole(self, owner: str | None) -> Sequence[FeedItem]:
        """All that wait."""
        return self._items


class QuestionSource:
    """What runs ask their people."""

    always_whole = True

    def __init__(self, talks: Conversations, show: Callable[[str, Question], Struct]) -> None:
        """Take the sessions of a tenant."""
        self._talks, self._show = talks, show
        self._asked: Sequence[tuple[str, Question]] | None = None
        self._items: Sequence[FeedItem] = ()

    def is_due(self, written: bool) -> bool:
        """Whether anything was written."""
        return written

    async def look(self) -> Sequence[FeedItem]:
        """All of them, and that something changed if nothing is left; nothing if none did."""
        asked = await self._talks.questions.waiting()
        if asked == self._asked:
            return ()
        owners = await owners_of(self._talks, {session for session, _ in asked})
        gone, self._asked = self._items, asked
        self._items = [
            _item(question.id, owners[session], self._show(session, question))
            for session, question in asked
        ]
        return self._items or gone

    async def whole(self, owner: str | None) -> Sequence[FeedItem]:
        """All that are not answered yet."""
        return self._items


async def owners_of(talks: Conversations, sessions: set[str]) -> dict[str, str]:
    """Whose each session is; nobody's if it is gone."""
    found = {id_: await talks.store.session(id_) for id_ in sessions}
    return {id_: "" if one is None else one.owner for id_, one in found.items()}


class EdgeSource(Generic[D]):
    """The edges that are there, that were, and that may be."""

    always_whole = False

    def __init__(
        self,
        fleet: Fleet,
        joined: Callable[[], Mapping[str, D]],
        show: Callable[[str, Member | None, D | None], Struct],
    ) -> None:
        """Choose where to look.

        Args:
            fleet: Who is there.
            joined: Who joined, by name.
            show: Makes what is shown of one, of what is known of it.
        """
        self._fleet, self._joined, self._show = fleet, joined, show
        self._revision = 0
        self._devices: Mapping[str, D] = {}
        self._items: dict[str, FeedItem] = {}

    def is_due(self, written: bool) -> bool:
        """Always: what joined is not in the store, and all of it costs little."""
        return True

    async def look(self) -> Sequence[FeedItem]:
        """Those of whom something changed, if only a heartbeat came."""
        devices = self._joined()
        moved = {member.agent_id for member in self._fleet.changed_since(self._revision)}
        if devices != self._devices:
            known = self._devices
            moved |= {name for name in (*devices, *known) if devices.get(name) != known.get(name)}
        self._revision, self._devices = self._fleet.revision, devices
        fresh = [self._made(name) for name in sorted(moved)]
        self._items |= {one.id: one for one in fresh}
        return fresh

    def _made(self, name: str) -> FeedItem:
        return _item(name, None, self._show(name, self._fleet.find(name), self._devices.get(name)))

    async def whole(self, owner: str | None) -> Sequence[FeedItem]:
        """All of them, by name."""
        return [self._items[name] for name in sorted(self._items)]
