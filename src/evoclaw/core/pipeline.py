"""The call pipeline: which tools are offered, what judges a call, where it runs, what then follows.

A pipeline is an executor made of small steps, one concern each, in five stages: `offer` filters the
tools, `before` judges a call, `run` is the route to the executor that has the tool, `around` holds
something while the call runs, `after` works on the result. A `PipelineSpec` declares which steps a
kind of pipeline has and in which order; whoever builds one only supplies the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from evoclaw.core.chain import Chain
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Executor, Policy, Progress, Verdict
from evoclaw.core.routes import Route, Routes
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import NO_TOOLS, Toolset
from evoclaw.core.wording import tool_not_found


@dataclass(slots=True)
class Execution:
    """One call while it runs, and its result once there is one."""

    call: Call
    progress: Progress
    route: Route
    started: float = 0.0
    ended: float = 0.0
    """Seconds since 1970."""
    result: ToolResult | None = None


class OfferStep(Protocol):
    """Filters or changes the tools that the model is offered; pure."""

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The tools that remain."""
        ...

    def version(self) -> object:
        """An object that stays the same while `offer` would give the same again."""
        return None


class AroundStep(Protocol):
    """Holds something while a call runs: a span, a reservation, a copy of the output."""

    def around(self, execution: Execution) -> AbstractAsyncContextManager[None]:
        """Entered before the call runs, left when it ended; may replace progress and result."""
        ...


class ResultStep(Protocol):
    """Works on the result of a call, failures included."""

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """The result for the next step."""
        ...


Step: TypeAlias = OfferStep | Policy | AroundStep | ResultStep


def kind_of(step: Step) -> type:
    """The class that a step is declared as; a step that stands in for another one names it."""
    named = getattr(step, "kind", None)
    return named if isinstance(named, type) else type(step)


class DeclaredStep(Struct, frozen=True):
    """A declared step, for people."""

    stage: str
    name: str
    does: str


class PipelineSpec(Struct, frozen=True):
    """The steps of one kind of pipeline, in order."""

    name: str
    offer: tuple[type, ...] = ()
    before: tuple[type, ...] = ()
    around: tuple[type, ...] = ()
    after: tuple[type, ...] = ()

    def build(self, routes: Iterable[Executor | Route], steps: Iterable[Step] = ()) -> Pipeline:
        """A pipeline of these steps, put into the declared order."""
        return Pipeline(routes, steps, spec=self)

    def describe(self) -> tuple[DeclaredStep, ...]:
        """Every step with its stage and what it does: the first line of its docstring."""
        stages = {"offer": self.offer, "before": self.before, "around": self.around}
        stages["after"] = self.after
        return tuple(
            DeclaredStep(stage, kind.__name__, (kind.__doc__ or "").partition("\n")[0])
            for stage, kinds in stages.items()
            for kind in kinds
        )


class Pipeline:
    """An executor made of steps around routes to other executors."""

    def __init__(
        self,
        routes: Iterable[Executor | Route],
        steps: Iterable[Step] = (),
        *,
        spec: PipelineSpec | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Put the steps together.

        Args:
            routes: The executors that calls run on; a bare executor is a route as it is.
            steps: In any order if there is a spec, else in their own; one of each kind.
            spec: Declares the order; a step that it does not name is refused.
            clock: Seconds since 1970.
        """
        self.routes = routes if isinstance(routes, Routes) else Routes(routes)
        self.spec, self._clock, self.steps = spec, clock, tuple(steps)
        kinds = {kind_of(step) for step in self.steps}
        if len(kinds) < len(self.steps):
            # The second would hide the first, and a rule that is not asked is no rule.
            raise ConfigError(
                "two steps of a pipeline are of one kind; put two policies in a Chain"
            )
        if spec is not None and (
            unknown := kinds - {*spec.offer, *spec.before, *spec.around, *spec.after}
        ):
            names = ", ".join(sorted(kind.__name__ for kind in unknown))
            raise ConfigError(f"the pipeline {spec.name!r} declares no step {names}")
        self.offer: tuple[OfferStep, ...] = self._in_order("offer", "offer")
        self.before: tuple[Policy, ...] = self._in_order("before", "judge")
        self.around: tuple[AroundStep, ...] = self._in_order("around", "around")
        self.after: tuple[ResultStep, ...] = self._in_order("after", "finish")
        chain = Chain(self.before)
        self.policy: Policy = _ByRoute(chain, self.routes) if self.routes.direct else chain
        """Judges calls by `before`, or by the rules of their route where it has its own."""
        self._seen: tuple[object, ...] = ()
        self._tools = NO_TOOLS
        self._names: frozenset[str] = frozenset()

    def _in_order(self, stage: str, method: str) -> tuple[Any, ...]:
        """The steps of a stage: those that have its method, as the spec orders them."""
        found = {kind_of(step): step for step in self.steps if hasattr(step, method)}
        declared = found if self.spec is None else getattr(self.spec, stage)
        return tuple(found[kind] for kind in declared if kind in found)

    def with_steps(self, *steps: Step, routes: Iterable[Executor | Route] = ()) -> Pipeline:
        """The same pipeline with more; a step replaces the one of its kind."""
        added = tuple(routes)
        every = (*self.routes, *added) if added else self.routes
        found = {kind_of(step): step for step in (*self.steps, *steps)}
        return Pipeline(every, found.values(), spec=self.spec, clock=self._clock)

    @classmethod
    def of(cls, executor: Executor, policy: Policy | None = None) -> Pipeline:
        """An executor as a pipeline; one that is a pipeline stays as it is.

        A policy that is not the pipeline's own becomes one more step of it: no rule is lost.
        """
        found = executor if isinstance(executor, Pipeline) else cls([executor])
        if policy is None or policy is found.policy:
            return found
        before = next((step for step in found.before if isinstance(step, GivenRules)), None)
        given = policy if before is None else Chain((before.policy, policy))
        return found.with_steps(GivenRules(given))

    def tools(self) -> Sequence[Tool]:
        """What is offered now; the same object while nothing changed."""
        found, direct = self.routes.tools()
        seen = (found, direct, *(step.version() for step in self.offer))
        if len(seen) == len(self._seen) and all(
            new is old for new, old in zip(seen, self._seen, strict=True)
        ):
            return self._tools
        left: Sequence[Tool] = found
        for step in self.offer:
            left = step.offer(left)
        own = frozenset(tool.name for tool in direct)
        offered = [*(tool for tool in left if tool.name not in own), *direct]
        same = not self.offer and not direct
        self._tools = found if same else Toolset(offered, sources=[found, direct])
        self._names = frozenset(self._tools.names)
        self._seen = seen
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call where its tool is; every failure of a tool passes through `after` too."""
        self.tools()
        route = self.routes.find(call.name) if call.name in self._names else None
        if route is None:
            text = tool_not_found(call.name, self._tools.names)
            raise ToolFailure(ErrorKind.NOT_FOUND, text)
        execution = Execution(call, progress, route)
        if self.around:
            async with AsyncExitStack() as stack:
                for step in self.around:
                    await stack.enter_async_context(step.around(execution))
                await self._run(execution)
        else:
            await self._run(execution)
        result = execution.result
        assert result is not None
        for step in self.after:
            result = await step.finish(execution, result)
        return result

    async def _run(self, execution: Execution) -> None:
        call, route = execution.call, execution.route
        if route.ready is not None:
            await route.ready()
        execution.started = self._clock()
        try:
            execution.result = await route.executor.execute(call, execution.progress)
        except ToolFailure as failure:
            execution.result = call.failed(failure.kind, failure.message, **failure.details)
        execution.ended = self._clock()


@dataclass(frozen=True, slots=True)
class GivenRules(Policy):
    """Judges by rules that were given beside the executor, whatever they are."""

    policy: Policy

    async def judge(self, call: Call) -> Verdict:
        """Judge as they do."""
        return await self.policy.judge(call)

    async def admit(self, turn: int) -> Verdict:
        """Judge another turn as they do."""
        return await self.policy.admit(turn)


@dataclass(frozen=True, slots=True)
class _ByRoute(Policy):
    """Judges the tools of routes that have rules of their own by those alone."""

    chain: Chain
    routes: Routes

    async def judge(self, call: Call) -> Verdict:
        route = self.routes.find(call.name)
        own = None if route is None else route.before
        return await (self.chain if own is None else Chain(own)).judge(call)

    async def admit(self, turn: int) -> Verdict:
        return await self.chain.admit(turn)
