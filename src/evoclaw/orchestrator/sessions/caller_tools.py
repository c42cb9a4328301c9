"""Caller's tools: a run calls a tool that its caller runs, and waits for the result.

A call of such a tool parks the run as `waiting`. The call is stored beside the questions, under the
id of the call, so that the run continues from there after a restart, and no call is made twice.
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
from evoclaw.orchestrator.sessions.run_ids import tenant_run_id
from evoclaw.store.sessions.questions import QuestionStore, StoredQuestion

CALLER_ASK_CODE = "caller"
"""The code of the verdict that parks a run until its caller has run a tool."""
MAX_CALLER_TOOLS = 128
CALLER_PREFIX, AGENT_PREFIX = "caller.", "agent_"
"""Of a caller's tool in records, and of an agent's tool for the model, if both have one name."""
MAX_TOOL_NAME_CHARS = 64
NO_PARAMETERS: dict[str, JSON] = {"type": "object", "properties": {}}
_CALL_ID = re.compile(r"call_([A-Za-z0-9-]{1,100})_([0-9]{1,6})_([0-9]{1,6})")


class ResultsMissing(EvoClawError):
    """The caller sent results for only some of the calls that a run waits for."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(
            f"the run also waits for the results of these calls: {', '.join(ids)}; send them all"
        )
        self.ids = tuple(ids)


class ResultsUnknown(EvoClawError):
    """Some results belong to no call of the run that the other results belong to."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(
            f"these calls do not belong to the run of the other results: {', '.join(ids)}"
        )
        self.ids = tuple(ids)


class CallPosition(Struct, frozen=True):
    """The position of a call: its run, turn and index; unique, and the same after a restart."""

    run_id: str
    turn: int
    index: int

    @property
    def key(self) -> str:
        """The key under which the call is stored."""
        return f"{self.run_id}.{self.turn}.{self.index}"

    def call_id(self) -> str:
        """The id of the call that the caller gets; as hard to guess as the run's."""
        return f"call_{self.run_id}_{self.turn}_{self.index}"


def parse_call_id(tenant: str, call_id: str) -> CallPosition | None:
    """Parse the id of a call; None if it is malformed. The run is always one of the tenant."""
    found = _CALL_ID.fullmatch(call_id)
    if found is None:
        return None
    run_id, turn, index = found.groups()
    return CallPosition(tenant_run_id(tenant, run_id), int(turn), int(index))


class CallerCall(Struct, frozen=True):
    """A stored call; a reader that lists questions reads the first two fields as a question."""

    id: str
    text: str
    tool: str
    arguments: dict[str, JSON] = {}
    caller: bool = False
    """Always true; a question does not have this field."""


class CallerResult(Struct, frozen=True, omit_defaults=True):
    """The result that the caller sent; a person's answer in its place reads the same."""

    blocks: tuple[Block, ...] = ()
    text: str = ""

    def content(self) -> tuple[Block, ...]:
        """The blocks for the model."""
        return self.blocks or (TextBlock(self.text),)


class DeliveredResults(Struct, frozen=True):
    """The calls of one run whose results are now all stored."""

    run_id: str
    session_id: str
    positions: frozenset[CallPosition]


class CallerCallStore:
    """The calls that callers of a tenant are to run, and their results."""

    def __init__(self, store: QuestionStore) -> None:
        self._store = store

    def of(self, tenant: str) -> CallerCallStore:
        """The calls of another tenant."""
        return CallerCallStore(self._store.of(tenant))

    async def result_of(self, session_id: str, call: Call) -> CallerResult | None:
        """The result of a call, or None; stores the call in any case."""
        key = call.request_id.rpartition(".")[0] or call.request_id
        text = f"The caller's own program is to run {call.name!r}."
        handed = CallerCall(key, text, call.name, call.arguments, caller=True)
        stored = await self._store.ask(key, session_id, msgspec.json.encode(handed))
        return (
            None if stored.answer is None else msgspec.json.decode(stored.answer, type=CallerResult)
        )

    async def deliver(
        self,
        results: Mapping[str, tuple[Block, ...]],
        is_allowed: Callable[[str], Awaitable[bool]],
    ) -> DeliveredResults | None:
        """Store the results of all calls that a run waits for; sending them again does no harm.

        None, with nothing stored, if no run waits for these calls or got other results before.

        Args:
            results: The results by the id of the call.
            is_allowed: Whether the caller may send results to a session, by its id.
        """
        found = await self._find_calls(results)
        if not found or not await is_allowed(next(iter(found.values()))[1].session_id):
            return None
        if unknown := [call_id for call_id in results if call_id not in found]:
            raise ResultsUnknown(unknown)
        run_id = next(iter(found.values()))[0].run_id
        session_id = next(iter(found.values()))[1].session_id
        if missing := await self._missing(session_id, found):
            raise ResultsMissing(missing)
        blobs = {id_: msgspec.json.encode(CallerResult(blocks)) for id_, blocks in results.items()}
        if any(row.answer not in (None, blobs[id_]) for id_, (_, row) in found.items()):
            return None
        for id_, (position, row) in found.items():
            if row.answer is None and not await self._store_answer(position, blobs[id_]):
                return None
        return DeliveredResults(
            run_id, session_id, frozenset(position for position, _ in found.values())
        )

    async def waiting_run(
        self, call_ids: Iterable[str], is_allowed: Callable[[str], Awaitable[bool]]
    ) -> str:
        """The id of the run that still waits for the results of these calls; empty if none does.

        Args:
            call_ids: The ids of the calls.
            is_allowed: Whether the caller may ask about a session, by its id.
        """
        found = await self._find_calls(call_ids)
        for position, row in found.values():
            waiting = [open_.id for open_ in await self._store.waiting(row.session_id)]
            return position.run_id if row.id in waiting and await is_allowed(row.session_id) else ""
        return ""

    async def _find_calls(
        self, call_ids: Iterable[str]
    ) -> dict[str, tuple[CallPosition, StoredQuestion]]:
        """The stored calls of these ids that belong to the run of the first one found."""
        found: dict[str, tuple[CallPosition, StoredQuestion]] = {}
        run_id = ""
        for id_ in call_ids:
            position = parse_call_id(self._store.tenant, id_)
            row = None if position is None else await self._store.get(position.key)
            if position is None or row is None or not _decode_call(row).caller:
                continue
            run_id = run_id or position.run_id
            if position.run_id == run_id:
                found[id_] = (position, row)
        return found

    async def _missing(
        self, session_id: str, found: Mapping[str, tuple[CallPosition, StoredQuestion]]
    ) -> list[str]:
        """The other open calls of the same turn; calls of a later turn do not count."""
        have = {position.key for position, _ in found.values()}
        turns = tuple({f"{position.run_id}.{position.turn}." for position, _ in found.values()})
        waiting = [row for row in await self._store.waiting(session_id) if row.id not in have]
        found_open = [
            row.id for row in waiting if row.id.startswith(turns) and _decode_call(row).caller
        ]
        return [f"call_{id_.replace('.', '_')}" for id_ in found_open]

    async def _store_answer(self, position: CallPosition, blob: bytes) -> bool:
        """Whether this result is stored now, by this request or by an equal earlier one."""
        if await self._store.answer(position.key, blob):
            return True
        row = await self._store.get(position.key)
        return row is not None and row.answer == blob


def _decode_call(row: StoredQuestion) -> CallerCall:
    return msgspec.convert({"tool": "", **msgspec.json.decode(row.question)}, CallerCall)


def caller_tool(
    name: str, description: str = "", parameters: dict[str, JSON] | None = None
) -> Tool:
    """A tool that the caller runs.

    A call does nothing here and is shown only to the caller, who owns the run: it needs no
    permission. The result counts as coming from the outside.
    """
    return Tool(
        name, description, NO_PARAMETERS if parameters is None else parameters,
        effect=Effect.READ, resources=(), idempotent=True, outside=True, acts=False,
    )  # fmt: skip


def check_caller_tools(tools: Sequence[Tool]) -> None:
    """Reject tools of a caller that are invalid or duplicate."""
    Toolset(tools)


def with_free_names(
    tools: Sequence[Tool], taken: Iterable[str]
) -> tuple[tuple[Tool, ...], dict[str, str]]:
    """The caller's tools under names that no tool of the agent has, and the names for the model.

    In records and for policies a name means one tool. The model is shown the caller's tool under
    the caller's name, and the agent's tool under another: the names are those of `ReplyOptions`.
    """
    held, names = frozenset(taken), dict[str, str]()
    used = {*held, *(tool.name for tool in tools)}
    free: list[Tool] = []
    for tool in tools:
        if tool.name not in held:
            free.append(tool)
            continue
        inner = _unused(CALLER_PREFIX, tool.name, used)
        names |= {inner: tool.name, tool.name: _unused(AGENT_PREFIX, tool.name, used)}
        free.append(replace(tool, name=inner))
    return tuple(free), names


def _unused(prefix: str, name: str, used: set[str]) -> str:
    """A name with a prefix that is not used yet; it is used now."""
    found = prefix + name[: MAX_TOOL_NAME_CHARS - len(prefix)]
    number = 1
    while found in used:
        number += 1
        end = f"_{number}"
        found = prefix + name[: MAX_TOOL_NAME_CHARS - len(prefix) - len(end)] + end
    used.add(found)
    return found


def with_caller_tools(
    ports: Ports, tools: Sequence[Tool], calls: CallerCallStore, session_id: str, budget: Policy
) -> Ports:
    """Add the caller's tools to the ports of a run.

    Args:
        ports: The ports of the run.
        tools: The caller's tools; without any, the ports are unchanged.
        calls: The store for calls and results, of the run's tenant.
        session_id: The session of the run.
        budget: The policy that still judges such a call. The agent's other rules do not, as nothing
            runs here.
    """
    if not tools:
        return ports
    own = CallerTools(calls, session_id, tools, budget, ports.approver)
    route = Route(own, RoutePlace.CALLER, before=(own,))
    pipeline = Pipeline.of(ports.executor, ports.policy).with_steps(routes=[route])
    return replace(ports, executor=pipeline, policy=pipeline.policy, approver=own)


class CallerTools(Policy):
    """The caller's tools: a call waits until the caller sent its result.

    Executor of the tools, policy that parks the run, and approver that says what the run waits for.
    """

    def __init__(
        self,
        calls: CallerCallStore,
        session_id: str,
        tools: Sequence[Tool],
        budget: Policy,
        approver: Approver,
    ) -> None:
        self._calls, self._session_id = calls, session_id
        self._budget, self._approver = budget, approver
        self._tools = Toolset(tools)

    def tools(self) -> Sequence[Tool]:
        """The tools that the caller brought."""
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Answer with the caller's result."""
        result = await self._calls.result_of(self._session_id, call)
        if result is None:
            # Unreachable: a call is allowed only when its result is stored.
            raise RuntimeError(f"the caller has not run {call.name!r} yet")
        return ToolResult(call.id, call.name, result.content())

    async def judge(self, call: Call) -> Verdict:
        """Allow a call once its result is stored; a resumed run asks again."""
        if await self._calls.result_of(self._session_id, call) is None:
            return Ask(CALLER_ASK_CODE, f"{call.name} is to be run by the caller")
        return await self._budget.judge(call)

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Answer that the result is pending; leave other questions to the run's approver."""
        if ask.code == CALLER_ASK_CODE and call.name in self._tools.names:
            return Approval(Decision.PENDING, ask.reason)
        return await self._approver.approve(call, ask)
