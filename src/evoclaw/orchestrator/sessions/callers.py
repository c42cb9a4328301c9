"""Tools that the caller of a run brings and runs himself: the run waits until the result is there.

A call of such a tool parks the run as `waiting`. It is kept where questions are, under the id of
the call, so that the run goes on from there also after a restart, and nothing is asked twice.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, Block, TextBlock, ToolResult
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import (
    Approval,
    Approver,
    Ask,
    Decision,
    Policy,
    Ports,
    Progress,
    Verdict,
)
from evoclaw.core.routes import Place as RoutePlace
from evoclaw.core.routes import Route
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.orchestrator.sessions.subruns import run_id_of
from evoclaw.store.sessions.questions import QuestionStore, StoredQuestion

CODE = "caller"
"""Of the verdict that stops a run until its caller has run a tool."""
MOST_TOOLS = 128
NO_PARAMETERS: dict[str, JSON] = {"type": "object", "properties": {}}
_PLACE = re.compile(r"call_([A-Za-z0-9-]{1,100})_([0-9]{1,6})_([0-9]{1,6})")


class NameTaken(EvoClawError):
    """A tool of the caller is named like one that the agent has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the agent has a tool {name!r} of its own; name yours differently")
        self.name = name


class ResultsMissing(EvoClawError):
    """Results were given for some of the calls that a run waits for, and not for others."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(f"the run waits for the results of these calls, too: {', '.join(ids)}")
        self.ids = tuple(ids)


class ResultsUnknown(EvoClawError):
    """Results belong to no call of the run that the others belong to."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(f"the run of the other results asked for none of: {', '.join(ids)}")
        self.ids = tuple(ids)


class Place(Struct, frozen=True):
    """Which call it is: the same after a restart, and different from every other one."""

    run_id: str
    turn: int
    index: int

    @property
    def key(self) -> str:
        """Under which it is kept."""
        return f"{self.run_id}.{self.turn}.{self.index}"

    def shown(self) -> str:
        """The id that the caller is given; as hard to guess as the run's."""
        return f"call_{self.run_id}_{self.turn}_{self.index}"


def place_of(tenant: str, shown: str) -> Place | None:
    """The call that a caller names, if the id can be one of ours; always one of his tenant."""
    found = _PLACE.fullmatch(shown)
    if found is None:
        return None
    run_id, turn, index = found.groups()
    return Place(run_id_of(tenant, run_id), int(turn), int(index))


class Handed(Struct, frozen=True):
    """A call as it is kept; whoever lists questions reads the first two fields as one."""

    id: str
    text: str
    tool: str
    arguments: dict[str, JSON] = {}
    caller: bool = False
    """Always true; a question has no such field."""


class Given(Struct, frozen=True, omit_defaults=True):
    """What the caller's program gave back; a person's answer in its stead reads the same."""

    blocks: tuple[Block, ...] = ()
    text: str = ""

    def content(self) -> tuple[Block, ...]:
        """For the model."""
        return self.blocks or (TextBlock(self.text),)


class Parked(Struct, frozen=True):
    """The calls of one run, whose results are all kept now."""

    run_id: str
    session_id: str
    places: frozenset[Place]


class Callers:
    """What the callers of a tenant are to run, and what they gave back."""

    def __init__(self, store: QuestionStore) -> None:
        self._store = store

    def of(self, tenant: str) -> Callers:
        """Those of another tenant."""
        return Callers(self._store.of(tenant))

    async def given(self, session_id: str, call: Call) -> Given | None:
        """The result of a call if it is there; the call is kept in any case."""
        key = call.request_id.rpartition(".")[0] or call.request_id
        text = f"The caller's own program is to run {call.name!r}."
        handed = Handed(key, text, call.name, call.arguments, caller=True)
        stored = await self._store.ask(key, session_id, msgspec.json.encode(handed))
        return None if stored.answer is None else msgspec.json.decode(stored.answer, type=Given)

    async def take(
        self,
        results: Mapping[str, tuple[Block, ...]],
        may: Callable[[str], Awaitable[bool]],
    ) -> Parked | None:
        """Keep the results of all calls that a run waits for; the same again are harmless.

        None if no run waits for them, nor once waited and got just these: nothing was kept then.

        Args:
            results: By the id that the caller was given.
            may: Whether whoever gives them may do so for a session, by its id.
        """
        found = await self._asked(results)
        if not found or not await may(next(iter(found.values()))[1].session_id):
            return None
        if strangers := [shown for shown in results if shown not in found]:
            raise ResultsUnknown(strangers)
        run_id = next(iter(found.values()))[0].run_id
        session_id = next(iter(found.values()))[1].session_id
        if missing := await self._missing(session_id, found):
            raise ResultsMissing(missing)
        blobs = {shown: msgspec.json.encode(Given(blocks)) for shown, blocks in results.items()}
        if any(row.answer not in (None, blobs[shown]) for shown, (_, row) in found.items()):
            return None
        for shown, (place, row) in found.items():
            if row.answer is None and not await self._keep(place, blobs[shown]):
                return None
        return Parked(run_id, session_id, frozenset(place for place, _ in found.values()))

    async def left(self, shown: Iterable[str], may: Callable[[str], Awaitable[bool]]) -> str:
        """The run that still waits for the results of these calls; empty if none does.

        Args:
            shown: The ids of the calls.
            may: Whether whoever asks may do so for a session, by its id.
        """
        found = await self._asked(shown)
        for place, row in found.values():
            waiting = [one.id for one in await self._store.waiting(row.session_id)]
            return place.run_id if row.id in waiting and await may(row.session_id) else ""
        return ""

    async def _asked(self, shown: Iterable[str]) -> dict[str, tuple[Place, StoredQuestion]]:
        """Those of the ids that name calls of one run; of the first one's."""
        found: dict[str, tuple[Place, StoredQuestion]] = {}
        run_id = ""
        for one in shown:
            place = place_of(self._store.tenant, one)
            row = None if place is None else await self._store.get(place.key)
            if place is None or row is None or not _handed(row).caller:
                continue
            run_id = run_id or place.run_id
            if place.run_id == run_id:
                found[one] = (place, row)
        return found

    async def _missing(
        self, session_id: str, found: Mapping[str, tuple[Place, StoredQuestion]]
    ) -> list[str]:
        """The other calls of the same turn that wait; a later turn's are another affair."""
        have = {place.key for place, _ in found.values()}
        turns = tuple({f"{place.run_id}.{place.turn}." for place, _ in found.values()})
        waiting = [row for row in await self._store.waiting(session_id) if row.id not in have]
        found_open = [row.id for row in waiting if row.id.startswith(turns) and _handed(row).caller]
        return [f"call_{id_.replace('.', '_')}" for id_ in found_open]

    async def _keep(self, place: Place, blob: bytes) -> bool:
        """Whether it is kept now: by us, or by one who was quicker with the same."""
        if await self._store.answer(place.key, blob):
            return True
        row = await self._store.get(place.key)
        return row is not None and row.answer == blob


def _handed(row: StoredQuestion) -> Handed:
    return msgspec.convert({"tool": "", **msgspec.json.decode(row.question)}, Handed)


def caller_tool(
    name: str, description: str = "", parameters: dict[str, JSON] | None = None
) -> Tool:
    """A tool that the caller runs.

    Asking for it does nothing here and tells nobody but the caller, whose run it is: so it needs
    no permission. What he does with it is his affair; what comes back is from the outside.
    """
    return Tool(
        name, description, NO_PARAMETERS if parameters is None else parameters,
        effect=Effect.READ, resources=(), idempotent=True, outside=True, acts=False,
    )  # fmt: skip


def check_tools(tools: Sequence[Tool], ours: Iterable[str] = ()) -> None:
    """Refuse tools of a caller that are unsound, stand twice, or are named like ours."""
    Toolset(tools)
    taken = frozenset(ours)
    for tool in tools:
        if tool.name in taken:
            raise NameTaken(tool.name)


def with_callers(
    ports: Ports, tools: Sequence[Tool], callers: Callers, session_id: str, counted: Policy
) -> Ports:
    """The parts of a run, with the caller's own tools beside the agent's.

    Args:
        ports: What the run has without.
        tools: Of the caller; none changes nothing.
        callers: Where calls and results are kept, of the run's tenant.
        session_id: Of the run.
        counted: What still judges a call of the caller's: its budget. The agent's own rules do
            not: nothing runs here.
    """
    if not tools:
        return ports
    own = CallerTools(callers, session_id, tools, counted, ports.approver)
    route = Route(own, RoutePlace.CALLER, before=(own,))
    pipeline = Pipeline.of(ports.executor, ports.policy).with_steps(routes=[route])
    return replace(ports, executor=pipeline, policy=pipeline.policy, approver=own)


class CallerTools(Policy):
    """The caller's tools: a call waits until the caller gave its result, which answers it.

    An executor, the policy that stops the run, and the approver that says what it waits for.
    """

    def __init__(
        self,
        callers: Callers,
        session_id: str,
        tools: Sequence[Tool],
        counted: Policy,
        approver: Approver,
    ) -> None:
        self._callers, self._session_id = callers, session_id
        self._counted, self._approver = counted, approver
        self._tools = Toolset(tools)

    def tools(self) -> Sequence[Tool]:
        """The tools that the caller brought."""
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Answer with what the caller gave."""
        given = await self._callers.given(self._session_id, call)
        if given is None:
            # Unreachable: a call is allowed only when its result is there.
            raise RuntimeError(f"the caller has not run {call.name!r} yet")
        return ToolResult(call.id, call.name, given.content())

    async def judge(self, call: Call) -> Verdict:
        """Allow a call when its result is there; a resumed run asks the same again."""
        if await self._callers.given(self._session_id, call) is None:
            return Ask(CODE, f"{call.name} is to be run by the caller")
        return await self._counted.judge(call)

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Say that the result is still to come; leave the rest to the run's approver."""
        if ask.code == CODE and call.name in self._tools.names:
            return Approval(Decision.PENDING, ask.reason)
        return await self._approver.approve(call, ask)
