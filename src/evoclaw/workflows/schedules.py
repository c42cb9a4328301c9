"""Starts workflows on schedule: each time once, and only one of several missed times."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import Principal
from evoclaw.store.workflows.workflows import (
    SCHEDULE_KEY_PREFIX,
    NewWorkflow,
    StoredSchedule,
    WorkflowStore,
)
from evoclaw.workflows.catalogue import Catalogue
from evoclaw.workflows.child_workflows import new_workflow
from evoclaw.workflows.cron import parse_cron, zone_of
from evoclaw.workflows.definition import Schedule, Workflow
from evoclaw.workflows.progress import Plan
from evoclaw.workflows.validation import with_defaults

logger = logging.getLogger(__name__)


class Schedules:
    """Starts the scheduled workflows that are due."""

    def __init__(
        self, store: WorkflowStore, catalogue: Catalogue, clock: Callable[[], float]
    ) -> None:
        self._store, self._catalogue, self._clock = store, catalogue, clock
        self._reported: set[str] = set()
        self._off: set[str] = set()

    async def start_due(self) -> float | None:
        """Start every workflow that is due; returns the time of the next start."""
        soonest: float | None = None
        entries = await asyncio.to_thread(self._catalogue.all)
        self._report(frozenset(entry.problem for entry in entries if entry.problem))
        for entry in entries:
            if entry.workflow is None or entry.workflow.schedule is None:
                continue
            next_at = await self._start(entry.workflow, entry.workflow.schedule)
            if next_at is not None:
                soonest = next_at if soonest is None else min(soonest, next_at)
        return soonest

    async def next_of(self, workflow: Workflow) -> float | None:
        """The next scheduled start of a workflow."""
        schedule = workflow.schedule
        if schedule is None or not schedule.enabled:
            return None
        known = await self._store.of(schedule.tenant).schedule(workflow.name)
        if known is not None and known.rule == schedule_rule(schedule):
            return known.next_at
        return next_time(schedule, None, self._clock())

    async def _start(self, workflow: Workflow, schedule: Schedule) -> float | None:
        store, now = self._store.of(schedule.tenant), self._clock()
        if not schedule.enabled:
            if workflow.name not in self._off:
                await store.delete_schedule(workflow.name)
                self._off.add(workflow.name)
            return None
        self._off.discard(workflow.name)
        known = await store.schedule(workflow.name)
        if known is None or known.rule != schedule_rule(schedule):
            first = next_time(schedule, None, now)
            known = await store.put_schedule(workflow.name, schedule_rule(schedule), first)
        if known.next_at > now:
            return known.next_at
        after = next_time(schedule, known.next_at, now)
        new = _new(workflow, schedule, known)
        await store.start_scheduled(known, after, new, overlap=schedule.overlap)
        return after

    def _report(self, problems: frozenset[str]) -> None:
        for problem in problems - self._reported:
            logger.warning("workflow not loaded: %s", problem)
        self._reported = set(problems)


def schedule_rule(schedule: Schedule) -> str:
    """The rule of a schedule as text; a schedule with another rule starts counting again."""
    if schedule.every_s is not None:
        return f"every {schedule.every_s} s"
    return f"{schedule.cron} {schedule.timezone}"


def next_time(schedule: Schedule, last: float | None, now: float) -> float:
    """The next time in the future, after the last start."""
    every = schedule.every_s
    if every is None:
        return parse_cron(schedule.cron).after(now, zone_of(schedule.timezone))
    if last is None:
        return now + every
    # Keep the rhythm, however many times were missed.
    return last + every * ((max(now, last) - last) // every + 1)


def _new(workflow: Workflow, schedule: Schedule, due: StoredSchedule) -> NewWorkflow:
    who = Principal(schedule.tenant, schedule.user)
    inputs = with_defaults(workflow, schedule.inputs)
    plan = Plan(workflow, who, inputs, scheduled_for=due.next_at)
    key = f"{SCHEDULE_KEY_PREFIX}{workflow.name}:{due.rule}:{due.next_at!r}"
    return new_workflow(f"wf_{secrets.token_hex(12)}", workflow, plan, key=key)


def check_key(key: str) -> str:
    """A caller's idempotency key; `ConfigError` if it is too long, or reserved for schedules."""
    if key.startswith(SCHEDULE_KEY_PREFIX) or len(key) > 200:
        raise ConfigError(
            f"the idempotency key {key[:40]!r} cannot be used; choose one of at most 200 "
            f"characters that does not start with {SCHEDULE_KEY_PREFIX!r}"
        )
    return key
