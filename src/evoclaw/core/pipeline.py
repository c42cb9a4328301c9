"""The call pipeline: which tools are offered, how a call is judged, where it runs, what follows.

A pipeline is an executor made of small steps, one concern each, in five stages: `offer` filters the
tools, `before` judges a call, `run` is the route to the executor that has the tool, `around` wraps
the call while it runs, `after` processes the result. A `PipelineSpec` declares which steps a kind
of pipeline has and in which order; the composition root only supplies the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from evoclaw.core.chain import Chain
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.ports import Executor, Policy, Progress, Verdict, locator
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
    """Wraps a running call: with a span, a reservation, a copy of the output."""

    def around(self, execution: Execution) -> AbstractAsyncContextManager[None]:
        """Entered before the call runs, exited when it ended; may replace progress and result."""
        ...


class ResultStep(Protocol):
    """Processes the result of a call, also of a failed one."""

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """The result for the next step."""
        ...


Step: TypeAlias = OfferStep | Policy | AroundStep | ResultStep
S = TypeVar("S", bound=Step)


def kind_of(step: Step) -> type:
    """The class that a step is declared as; a wrapper names the class it stands for."""
    declared = getattr(step, "kind", None)
    return declared if isinstance(declared, type) else type(step)


@cache
def _has_method(kind: type, method: str) -> bool:
    return hasattr(kind, method)


class DeclaredStep(Struct, frozen=True):
    """The description of a declared step, for people."""

    stage: str
    """When the step runs: `offer`, `before`, `around` or `after`."""
    name: str
    """The name of the step."""
    does: str
    """What the step does."""


class PipelineSpec(Struct, frozen=True):
    """The steps of one kind of pipeline, in order."""

    name: str
    offer: tuple[type, ...] = ()
    before: tuple[type, ...] = ()
    around: tuple[type, ...] = ()
    after: tuple[type, ...] = ()

    def build(self, routes: Iterable[Executor | Route], steps: Iterable[Step] = ()) -> Pipeline:
        """Build a pipeline of these steps in the declared order."""
        return Pipeline(routes, steps, spec=self)

    def describe(self) -> tuple[DeclaredStep, ...]:
        """Every step with its stage and the first line of its docstring."""
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
        """Build a pipeline.

        Args:
            routes: The executors that calls run on; a bare executor becomes a plain route.
            steps: At most one of each class; a spec orders them, else they run as given.
            spec: Declares the order; a step that it does not declare is rejected.
            clock: Seconds since 1970.
        """
        self.routes = routes if isinstance(routes, Routes) else Routes(routes)
        self.spec, self._clock, self.steps = spec, clock, tuple(steps)
        kinds = {kind_of(step): step for step in self.steps}
        if len(kinds) < len(self.steps):
            # The second would replace the first, and its policy would silently be skipped.
            raise ConfigError(
                "two steps of a pipeline are of one kind; combine two policies in a Chain"
            )
        if spec is not None and (
            unknown := kinds.keys() - {*spec.offer, *spec.before, *spec.around, *spec.after}
        ):
            names = ", ".join(sorted(kind.__name__ for kind in unknown))
            raise ConfigError(f"the pipeline {spec.name!r} does not declare the step {names}")
        self._by_kind = kinds
        self.offer: tuple[OfferStep, ...] = self._in_order("offer", "offer")
        self.before: tuple[Policy, ...] = self._in_order("before", "judge")
        self.around: tuple[AroundStep, ...] = self._in_order("around", "around")
        self.after: tuple[ResultStep, ...] = self._in_order("after", "finish")
        self._seen: tuple[object, ...] = ()
        self._tools = NO_TOOLS
        self._names: frozenset[str] = frozenset()

    @cached_property
    def policy(self) -> Policy:
        """Judges calls by `before`, or by the policies of the route if it has its own."""
        chain = Chain(self.before)
        return _RoutePolicy(chain, self.routes) if self.routes.direct else chain

    def _in_order(self, stage: str, method: str) -> tuple[Any, ...]:
        """The steps of a stage: those that have its method, in the order of the spec."""
        found = self._by_kind
        declared = found if self.spec is None else getattr(self.spec, stage)
        return tuple(
            step
            for kind in declared
            if (step := found.get(kind)) is not None and _has_method(type(step), method)
        )

    def step_of(self, kind: type[S]) -> S | None:
        """The step of a class, if there is one."""
        found = self._by_kind.get(kind)
        return found if type(found) is kind else None

    def with_steps(self, *steps: Step, routes: Iterable[Executor | Route] = ()) -> Pipeline:
        """The same pipeline with more steps and routes; a step replaces the one of its class."""
        added = tuple(routes)
        all_routes = (*self.routes, *added) if added else self.routes
        found = self._by_kind | {kind_of(step): step for step in steps}
        return Pipeline(all_routes, found.values(), spec=self.spec, clock=self._clock)

    @classmethod
    def of(cls, executor: Executor, policy: Policy | None = None) -> Pipeline:
        """An executor as a pipeline; a pipeline is returned as it is.

        A policy that is not the pipeline's own is added as a step: no policy is lost.
        """
        found = executor if isinstance(executor, Pipeline) else cls([executor])
        if policy is None or policy is found.policy:
            return found
        extra = next((step for step in found.before if isinstance(step, ExtraPolicy)), None)
        combined = policy if extra is None else Chain((extra.policy, policy))
        return found.with_steps(ExtraPolicy(combined))

    def tools(self) -> Sequence[Tool]:
        """The tools that are offered now; the same object while nothing changed."""
        found, direct = self.routes.tools()
        seen = (found, direct, *(step.version() for step in self.offer))
        if len(seen) == len(self._seen) and all(
            new is old for new, old in zip(seen, self._seen, strict=True)
        ):
            return self._tools
        remaining: Sequence[Tool] = found
        for step in self.offer:
            remaining = step.offer(remaining)
        direct_names = frozenset(tool.name for tool in direct)
        offered = [*(tool for tool in remaining if tool.name not in direct_names), *direct]
        unchanged = not self.offer and not direct
        self._tools = found if unchanged else Toolset.shared(offered, (found, direct))
        self._names = frozenset(self._tools.names)
        self._seen = seen
        return self._tools

    async def machine_of(self, call: Call) -> str:
        """The machine that a call will run on, as its route says."""
        route = self.routes.find(call.name)
        if route is None:
            return ""
        locate = locator(route.executor)
        return (await locate(call) if locate is not None else "") or route.machine

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call on the executor that has its tool; failures pass through `after` too."""
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
        if route.ready is not None and not call.only_reads_here:
            await route.ready()
        execution.started = self._clock()
        try:
            execution.result = await route.executor.execute(call, execution.progress)
        except ToolFailure as failure:
            execution.result = call.failed(failure.kind, failure.message, **failure.details)
        execution.ended = self._clock()


@dataclass(frozen=True, slots=True)
class ExtraPolicy(Policy):
    """A policy that was passed beside the executor and is not a declared step."""

    policy: Policy

    async def judge(self, call: Call) -> Verdict:
        """The verdict of the wrapped policy."""
        return await self.policy.judge(call)

    async def admit(self, turn: int) -> Verdict:
        """The verdict of the wrapped policy on another turn."""
        return await self.policy.admit(turn)


@dataclass(frozen=True, slots=True)
class _RoutePolicy(Policy):
    """Judges tools of routes with policies of their own by those policies alone."""

    chain: Chain
    routes: Routes

    async def judge(self, call: Call) -> Verdict:
        route = self.routes.find(call.name)
        policies = None if route is None else route.before
        return await (self.chain if policies is None else Chain(policies)).judge(call)

    async def admit(self, turn: int) -> Verdict:
        return await self.chain.admit(turn)
