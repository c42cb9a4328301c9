"""Run views: builds what the API shows of a run from the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from evoclaw.core.events import Record, RunFinished, StopReason
from evoclaw.orchestrator.runs.requests import RunStatus, RunView
from evoclaw.store.sessions.sessions import SessionStore, StoredRun

_STORE_STATE: dict[RunStatus | None, Literal["", "open", "waiting", "ended"]] = {
    None: "",
    RunStatus.QUEUED: "open",
    RunStatus.RUNNING: "open",
    RunStatus.WAITING: "waiting",
    RunStatus.ENDED: "ended",
}


def status_of(stored: StoredRun) -> RunStatus:
    """The status of a run. An interrupted run counts as running: a process will resume it."""
    if stored.stop is None:
        return RunStatus.RUNNING if stored.epoch else RunStatus.QUEUED
    return RunStatus.WAITING if stored.stop is StopReason.WAITING else RunStatus.ENDED


def stop_reason_of(stored: StoredRun) -> StopReason | None:
    """Why a run ended, or that it waits; None if it is active or about to be resumed."""
    is_held = stored.stop is StopReason.WAITING and stored.holder != ""
    return None if is_held else stored.stop


class RunViews:
    """Views of the runs of one tenant."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def view(self, stored: StoredRun) -> RunView:
        """The view of one run."""
        state, text, reason = status_of(stored), "", ""
        if state in (RunStatus.WAITING, RunStatus.ENDED):
            record = await self._store.last_record(stored.id)
            if record is not None and isinstance(end := record.event, RunFinished):
                text, reason = end.text, end.reason
        spent = stored.usage
        return RunView(
            stored.id,
            stored.session_id,
            stored.agent,
            state,
            stored.stop,
            stored.message,
            text,
            reason,
            spent.turns,
            spent.calls,
            spent.tokens_in,
            spent.tokens_out,
            spent.cost,
            stored.began_at,
            None if state is RunStatus.WAITING else stored.ended_at,
            stored.parent_run,
            stored.owner,
        )

    async def list(
        self,
        session_id: str,
        state: RunStatus | None,
        owner: str | None,
        before: str,
        limit: int,
        parent_run: str = "",
        agent: str = "",
    ) -> Sequence[RunView]:
        """Views of some runs, newest first."""
        found: list[RunView] = []
        while len(found) < limit:
            page = await self._store.runs(
                session_id=session_id,
                state=_STORE_STATE[state],
                owner=owner,
                parent_run=parent_run,
                before=before,
                limit=limit,
                agent=agent,
            )
            for stored in page:
                if state in (None, status_of(stored)) and len(found) < limit:
                    found.append(await self.view(stored))
            if len(page) < limit:
                break
            before = page[-1].id
        return found


class StoredRecords:
    """The stored records of one run."""

    def __init__(self, store: SessionStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id

    async def stop_reason(self) -> StopReason | None:
        """Why the run ended, or that it waits; `CANCELLED` for a run that was deleted."""
        stored = await self._store.run(self._run_id)
        return StopReason.CANCELLED if stored is None else stop_reason_of(stored)

    async def records(self, after: int, limit: int) -> Sequence[Record]:
        """The records after a number, at most `limit`."""
        return await self._store.records(self._run_id, after, limit)
