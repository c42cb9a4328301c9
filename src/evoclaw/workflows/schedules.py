"""Workflows that start by themselves: each time once, and of those that were missed only one."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import Principal
from evoclaw.store.workflows.workflows import (
    BY_SCHEDULE,
    NewWorkflow,
    StoredSchedule,
    WorkflowStore,
)
from evoclaw.workflows.catalogue import Catalogue
from evoclaw.workflows.checking import with_defaults
from evoclaw.workflows.children import new_workflow
from evoclaw.workflows.cron import parse_cron, zone_of
from evoclaw.workflows.definition import Schedule, Workflow
from evoclaw.workflows.progress import Plan

logger = logging.getLogger(__name__)


class Schedules:
    """Starts what is due."""

    def __init__(
        self, store: WorkflowStore, catalogue: Catalogue, clock: Callable[[], float]
    ) -> None:
        self._store, self._catalogue, self._clock = store, catalogue, clock
        self._told: set[str] = set()
        self._off: set[str] = set()

    async def start_due(self) -> float | None:
        """Start everything whose time has come; when the next one is."""
        soonest: float | None = None
        defined = await asyncio.to_thread(self._catalogue.all)
        self._tell(frozenset(one.problem for one in defined if one.problem))
        for one in defined:
            if one.workflow is None or one.workflow.schedule is None:
                continue
            next_at = await self._start(one.workflow, one.workflow.schedule)
            if next_at is not None:
                soonest = next_at if soonest is None else min(soonest, next_at)
        return soonest

    async def next_of(self, workflow: Workflow) -> float | None:
        """When a workflow starts by itself next."""
        schedule = workflow.schedule
        if schedule is None or not schedule.enabled:
            return None
        known = await self._store.of(schedule.tenant).schedule(workflow.name)
        if known is not None and known.rule == rule_of(schedule):
            return known.next_at
        return following(schedule, None, self._clock())

    async def _start(self, workflow: Workflow, schedule: Schedule) -> float | None:
        store, now = self._store.of(schedule.tenant), self._clock()
        if not schedule.enabled:
            if workflow.name not in self._off:
                await store.forget_schedule(workflow.name)
                self._off.add(workflow.name)
            return None
        self._off.discard(workflow.name)
        known = await store.schedule(workflow.name)
        if known is None or known.rule != rule_of(schedule):
            first = following(schedule, None, now)
            known = await store.plan_schedule(workflow.name, rule_of(schedule), first)
        if known.next_at > now:
            return known.next_at
        after = following(schedule, known.next_at, now)
        new = _new(workflow, schedule, known)
        await store.fire(known, after, new, overlap=schedule.overlap)
        return after

    def _tell(self, problems: frozenset[str]) -> None:
        for problem in problems - self._told:
            logger.warning("a workflow is left out: %s", problem)
        self._told = set(problems)


def rule_of(schedule: Schedule) -> str:
    """What the times of a schedule are made from: with another rule it begins anew."""
    if schedule.every_s is not None:
        return f"every {schedule.every_s} s"
    return f"{schedule.cron} {schedule.timezone}"


def following(schedule: Schedule, last: float | None, now: float) -> float:
    """The next time that is still to come, after the last one."""
    every = schedule.every_s
    if every is None:
        return parse_cron(schedule.cron).after(now, zone_of(schedule.timezone))
    if last is None:
        return now + every
    # In step with before, however many were missed.
    return last + every * ((max(now, last) - last) // every + 1)


def _new(workflow: Workflow, schedule: Schedule, due: StoredSchedule) -> NewWorkflow:
    who = Principal(schedule.tenant, schedule.user)
    inputs = with_defaults(workflow, schedule.inputs)
    plan = Plan(workflow, who, inputs, scheduled_for=due.next_at)
    key = f"{BY_SCHEDULE}{workflow.name}:{due.rule}:{due.next_at!r}"
    return new_workflow(f"wf_{secrets.token_hex(12)}", workflow, plan, key=key)


def check_key(key: str) -> str:
    """A caller's key; refused where it could be that of a schedule."""
    if key.startswith(BY_SCHEDULE) or len(key) > 200:
        raise ConfigError(f"the key {key[:40]!r} cannot be used; choose a short one of your own")
    return key
