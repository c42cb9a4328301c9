"""The sources of a feed: the runs, approvals, questions, edges and stops that a tenant sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from evoclaw.governance.stops import Stop
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.overview.feed import FeedItem
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals
from evoclaw.orchestrator.people.questions import Question
from evoclaw.orchestrator.runs.requests import RunView
from evoclaw.orchestrator.runs.views import RunViews
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.store.databases.change_detection import (
    STOP_COLUMN,
    CommitMark,
    RunStatusRow,
    commit_mark,
    run_status_rows,
)
from evoclaw.store.sessions.sessions import SessionStore

D = TypeVar("D")

INITIAL_RUNS = 50
"""That a new watcher gets."""
NEWEST_RUNS = 100
"""That are always polled."""
MAX_OPEN_RUNS = 500
"""Queued or in progress, that are polled as well."""
MAX_FOLLOWED_RUNS = 200
"""Seen open before and not listed any more, that are polled as well."""
VIEWS_REUSE_COUNT = 1_000
"""Runs that are shown before the cache of their sessions is dropped."""


def store_mark(conversations: Conversations | None) -> Callable[[], Awaitable[CommitMark]]:
    """A function that gives another mark after each commit; without a store, each time."""
    numbers = count()

    async def mark() -> CommitMark:
        if conversations is None:
            return next(numbers), ""
        return await commit_mark(conversations.store.database)

    return mark


def _item(id_: str, owner: str | None, view: Struct) -> FeedItem:
    return FeedItem(id_, owner, Raw(msgspec.json.encode(view)))


class RunSource:
    """Runs: the newest, and those in progress or waiting."""

    always_whole = False

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._views, self._shown = RunViews(store), 0
        self._known: dict[str, RunStatusRow] | None = None
        self._unlisted: list[str] = []
        """Runs that have not ended, and may not be listed in the next poll."""

    def is_due(self, written: bool) -> bool:
        """Whether anything was written."""
        return written

    async def poll(self) -> Sequence[FeedItem]:
        """The runs whose status changed."""
        store = self._store
        known = await run_status_rows(
            store.database, store.tenant, NEWEST_RUNS, MAX_OPEN_RUNS, self._unlisted
        )
        before = known if self._known is None else self._known
        changed = [id_ for id_, row in known.items() if before.get(id_) != row]
        items = [await self._item(run_id) for run_id in reversed(changed)]
        self._known = known
        active = [id_ for id_, row in known.items() if row[STOP_COLUMN] in (None, "waiting")]
        self._unlisted = active[:MAX_FOLLOWED_RUNS]
        return [item for item in items if item is not None]

    async def _item(self, run_id: str) -> FeedItem | None:
        await asyncio.sleep(0)  # there may be hundreds: let other tasks run
        run = await self._store.run(run_id)
        if run is None:
            return None  # it was deleted meanwhile
        self._shown += 1
        if self._shown % VIEWS_REUSE_COUNT == 0:
            self._views = RunViews(self._store)
        return _run_item(await self._views.view(run))

    async def all_items(self, owner: str | None) -> Sequence[FeedItem]:
        """The newest runs, the newest first."""
        views = await RunViews(self._store).list("", None, owner, "", INITIAL_RUNS)
        return [_run_item(view) for view in views]


def _run_item(view: RunView) -> FeedItem:
    return _item(view.run_id, view.owner, view)


class ApprovalSource:
    """Calls that wait for a person's approval."""

    always_whole = True

    def __init__(
        self,
        approvals: CallApprovals,
        tenant: str,
        show: Callable[[ApprovalCase], Struct],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._approvals, self._tenant = approvals, tenant
        self._show, self._clock = show, clock
        self._cases: Sequence[ApprovalCase] | None = None
        self._items: Sequence[FeedItem] = ()

    def is_due(self, written: bool) -> bool:
        """Whether anything was written, or an approval expired."""
        now, cases = self._clock(), self._cases or ()
        return written or any(case.request.expires_at <= now for case in cases)

    async def poll(self) -> Sequence[FeedItem]:
        """All items if any changed, the removed ones if none is left; nothing if none changed."""
        cases = await self._approvals.waiting(self._tenant)
        if cases == self._cases:
            return ()
        removed, self._cases = self._items, cases
        self._items = [
            _item(case.request.id, case.request.scope.user, self._show(case)) for case in cases
        ]
        return self._items or removed

    async def all_items(self, owner: str | None) -> Sequence[FeedItem]:
        """All waiting approvals."""
        return self._items


class QuestionSource:
    """Questions of runs to their users."""

    always_whole = True

    def __init__(
        self, conversations: Conversations, show: Callable[[str, Question], Struct]
    ) -> None:
        """Take the sessions of a tenant."""
        self._conversations, self._show = conversations, show
        self._pending: Sequence[tuple[str, Question]] | None = None
        self._items: Sequence[FeedItem] = ()

    def is_due(self, written: bool) -> bool:
        """Whether anything was written."""
        return written

    async def poll(self) -> Sequence[FeedItem]:
        """All items if any changed, the removed ones if none is left; nothing if none changed."""
        questions = await self._conversations.questions.waiting()
        if questions == self._pending:
            return ()
        owners = await owners_of(self._conversations, {session for session, _ in questions})
        removed, self._pending = self._items, questions
        self._items = [
            _item(question.id, owners[session], self._show(session, question))
            for session, question in questions
        ]
        return self._items or removed

    async def all_items(self, owner: str | None) -> Sequence[FeedItem]:
        """All unanswered questions."""
        return self._items


class StopSource:
    """Emergency stops in force, for every user of the dashboard."""

    always_whole = True

    def __init__(self, stops: Callable[[], Sequence[Stop]], show: Callable[[Stop], Struct]) -> None:
        """Take what lists the stops that a tenant may see, and makes their views."""
        self._stops, self._show = stops, show
        self._seen: Sequence[Stop] | None = None
        self._items: Sequence[FeedItem] = ()

    def is_due(self, written: bool) -> bool:
        """Always: stops are in a small file, not in the store."""
        return True

    async def poll(self) -> Sequence[FeedItem]:
        """All items if any changed, the removed ones if none is left; nothing if none changed."""
        found = list(self._stops())
        if found == self._seen:
            return ()
        removed, self._seen = self._items, found
        self._items = [_item(f"{stop.kind} {stop.name}", None, self._show(stop)) for stop in found]
        return self._items or removed

    async def all_items(self, owner: str | None) -> Sequence[FeedItem]:
        """All stops."""
        return self._items


async def owners_of(conversations: Conversations, sessions: set[str]) -> dict[str, str]:
    """The owner of each session; empty if it was deleted."""
    found = {id_: await conversations.store.session(id_) for id_ in sessions}
    return {id_: "" if session is None else session.owner for id_, session in found.items()}


class EdgeSource(Generic[D]):
    """Edges: online, known, and joined."""

    always_whole = False

    def __init__(
        self,
        fleet: Fleet,
        joined: Callable[[], Mapping[str, D]],
        show: Callable[[str, Member | None, D | None], Struct],
    ) -> None:
        """Watch a fleet.

        Args:
            fleet: The known edges.
            joined: The joined devices, by name.
            show: Makes the view of an edge, from its member and its device.
        """
        self._fleet, self._joined, self._show = fleet, joined, show
        self._revision = 0
        self._devices: Mapping[str, D] = {}
        self._items: dict[str, FeedItem] = {}

    def is_due(self, written: bool) -> bool:
        """Always: joined devices are not in the store, and polling is cheap."""
        return True

    async def poll(self) -> Sequence[FeedItem]:
        """The edges that changed, or sent a heartbeat."""
        devices = self._joined()
        changed = {member.agent_id for member in self._fleet.changed_since(self._revision)}
        if devices != self._devices:
            known = self._devices
            changed |= {name for name in (*devices, *known) if devices.get(name) != known.get(name)}
        self._revision, self._devices = self._fleet.revision, devices
        items = [self._item(name) for name in sorted(changed)]
        self._items |= {item.id: item for item in items}
        return items

    def _item(self, name: str) -> FeedItem:
        return _item(name, None, self._show(name, self._fleet.find(name), self._devices.get(name)))

    async def all_items(self, owner: str | None) -> Sequence[FeedItem]:
        """All edges, by name."""
        return [self._items[name] for name in sorted(self._items)]
