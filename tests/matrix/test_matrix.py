"""Thirty tools, allowed and not, on every machine that they work on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from evoclaw.core.chain import Chain
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import CallFinished, CallJudged, CallStarted, Record, RunFinished
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import ALLOW, Deny, Executor, Policy, Ports, Progress, Verdict
from evoclaw.core.run import watch
from evoclaw.core.tools import Call, Effect
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import Permissions, PermittedTools
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.sets import TOOL_NAMES, coding
from tests.matrix.table import HELD, REMOTE, TABLE, TOOLS, changed, lacking, not_made
from tests.support.fleet import open_fleet
from tests.support.tool_calls import call_of
from tests.support.tool_environment import (
    SharedToolServers,
    arguments_of,
    open_tool_servers,
    open_tool_testbed,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
BACKENDS = ("local", "ssh", "edge")
CELLS = [
    (backend, name)
    for backend in BACKENDS
    for name in (REMOTE if backend != "local" else TOOL_NAMES)
]
LACKS = [
    (backend, name, lack)
    for backend, name in CELLS
    for lack in sorted(TOOLS[name].tool.permissions)
]
NO = "The house rule says no."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grounds(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[SharedToolServers]:
    async with open_tool_servers(tmp_path_factory.mktemp("matrix"), ssh=True) as made:
        yield made


class SaysNo(Policy):
    """Denies one tool."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def judge(self, call: Call) -> Verdict:
        return Deny("house", NO) if call.name == self.name else ALLOW


class Heard:
    """A run in which a model asked for one call."""

    def __init__(self, records: list[Record], model: Scripted) -> None:
        self.model = model
        events = [record.event for record in records]
        self.judged = [event for event in events if isinstance(event, CallJudged)]
        self.started = [event.name for event in events if isinstance(event, CallStarted)]
        (self.result,) = [event.result for event in events if isinstance(event, CallFinished)]
        self.end = events[-1]

    @property
    def told(self) -> ToolResult:
        """What the model was told of its call."""
        last = self.model.requests[1].messages[-1]
        assert isinstance(last, ToolResult)
        return last


async def ask(executor: Executor, policy: Policy, name: str, arguments: dict[str, JSON]) -> Heard:
    """Have a model ask for one call."""
    model = Scripted(calls((name, arguments)), says("So be it."))
    async with asyncio.timeout(60):
        records = [record async for record in watch("Use it.", Ports(model, executor, policy))]
    return Heard(records, model)


def rules(held: frozenset[str], *more: Policy) -> Chain:
    return Chain((Permissions(held), Autonomy(Level.FULL), *more))


async def test_the_table_lists_every_tool_and_its_dependencies() -> None:
    assert sorted(TABLE) == sorted(TOOL_NAMES) and len(TABLE) == 30
    beside = {name: bound.dependencies - {FileOps, ExecOps} for name, bound in TOOLS.items()}
    assert {name: row.needs for name, row in TABLE.items()} == beside
    assert sorted(REMOTE) == sorted(name for name, needs in beside.items() if not needs)


@pytest.mark.parametrize(("backend", "name"), CELLS)
async def test_a_tool_runs_with_exactly_its_permissions(
    grounds: SharedToolServers, backend: str, name: str
) -> None:
    row, held = TABLE[name], TOOLS[name].tool.permissions
    async with open_tool_testbed(grounds, held) as place, place.on(backend) as tools:
        place.usable(name)
        before = await place.observed_effects()
        heard = await ask(
            Pipeline([tools], [PermittedTools(held)]),
            rules(held),
            name,
            arguments_of(name, grounds),
        )

        assert heard.result.error is None, heard.result.text
        assert lacking(heard.result.text, row.says) == []
        assert (heard.told.text, heard.told.name) == (heard.result.text, name)
        assert [one.verdict for one in heard.judged] == ["allow"]
        assert heard.started == tools.reached == [name]
        assert isinstance(heard.end, RunFinished) and heard.end.stop == "completed"
        assert name in heard.model.requests[0].tools
        after = await place.observed_effects()
        assert changed(before, after) == row.leaves and not_made(row, after) == []


@pytest.mark.parametrize(("backend", "name", "lack"), LACKS)
async def test_a_tool_is_neither_offered_nor_run_without_one_of_its_permissions(
    grounds: SharedToolServers, backend: str, name: str, lack: str
) -> None:
    held = HELD - {lack}
    async with open_tool_testbed(grounds, held) as place, place.on(backend) as tools:
        place.usable(name)
        before, arguments = await place.observed_effects(), arguments_of(name, grounds)
        offered = Pipeline([tools], [PermittedTools(held)])
        unoffered = await ask(offered, rules(held), name, arguments)
        refused = await ask(tools, rules(held), name, arguments)
        with pytest.raises(ToolFailure) as failed:
            await offered.execute(call_of(TOOLS[name], **arguments), lambda _: None)

        assert name in [tool.name for tool in tools.tools()]
        assert name not in unoffered.model.requests[0].tools
        assert unoffered.told.error is ErrorKind.NOT_FOUND and unoffered.judged == []
        assert [(one.verdict, one.code) for one in refused.judged] == [("deny", "permission")]
        assert refused.told.error is ErrorKind.PERMISSION_DENIED and lack in refused.told.text
        assert failed.value.kind is ErrorKind.NOT_FOUND
        assert unoffered.started == refused.started == tools.reached == []
        assert changed(before, await place.observed_effects()) == set()


@pytest.mark.parametrize(("backend", "name"), CELLS)
async def test_a_denied_tool_is_not_run_and_the_model_gets_the_reason(
    grounds: SharedToolServers, backend: str, name: str
) -> None:
    async with open_tool_testbed(grounds, HELD) as place, place.on(backend) as tools:
        place.usable(name)
        before = await place.observed_effects()
        policy = rules(HELD, SaysNo(name))
        heard = await ask(
            Pipeline([tools], [PermittedTools(HELD)]), policy, name, arguments_of(name, grounds)
        )

        assert name in heard.model.requests[0].tools
        assert [(one.verdict, one.code) for one in heard.judged] == [("deny", "house")]
        assert heard.told.error is ErrorKind.PERMISSION_DENIED and NO in heard.told.text
        assert heard.started == tools.reached == []
        assert changed(before, await place.observed_effects()) == set()


async def test_a_read_only_run_denies_exactly_the_writing_tools() -> None:
    rule = Autonomy(Level.READ_ONLY)
    found = {name: await rule.judge(_some_call(name)) for name in TOOL_NAMES}
    denied = {name for name, verdict in found.items() if isinstance(verdict, Deny)}
    assert denied == {name for name in TOOL_NAMES if TOOLS[name].tool.effect is Effect.WRITE}
    leaving = {name for name, row in TABLE.items() if row.leaves - {"web", "person"}}
    assert leaving <= denied, "what leaves a trace here writes"


@pytest.mark.parametrize("name", REMOTE)
async def test_a_tool_gives_the_same_result_on_every_backend(
    grounds: SharedToolServers, name: str
) -> None:
    said: dict[str, str] = {}
    left: dict[str, JSON] = {}
    for backend in BACKENDS:
        if backend == "ssh" and isinstance(grounds.ssh, str):
            continue
        async with open_tool_testbed(grounds, HELD) as place, place.on(backend) as tools:
            heard = await ask(tools, rules(HELD), name, arguments_of(name, grounds))
            said[backend] = _essential(heard.result.text)
            files = (await place.observed_effects())["files"]
            left[backend] = {path: data for path, data in files.items() if ".git/" not in path}
    assert len(said) >= 2
    assert set(said.values()) == {said["local"]}, said
    assert all(files == left["local"] for files in left.values()), "the same files are left"


async def test_an_edge_policy_refuses_calls_the_orchestrator_allows(
    grounds: SharedToolServers, tmp_path: Path
) -> None:
    grounds.refill()
    ran = list[str]()

    class Noting(LocalExecutor):
        async def execute(self, call: Call, progress: Progress) -> ToolResult:
            ran.append(call.name)
            return await super().execute(call, progress)

    files, processes = LocalFiles(grounds.workspace), LocalProcesses(grounds.workspace)
    device = Noting(coding(), files=files, exec=processes)
    refusing = Permissions(frozenset({"ui"}))
    wrong = list[str]()
    async with open_fleet(tmp_path, executor=device, policy=refusing) as home:
        for name in REMOTE:
            executor = home.orchestrator.edge("pi", queue=5)
            heard = await ask(executor, rules(HELD), name, arguments_of(name, grounds))
            if heard.started != [name] or heard.result.error is not ErrorKind.PERMISSION_DENIED:
                wrong.append(f"{name}: {heard.result}")
    assert wrong == [] and ran == []


def _some_call(name: str) -> Call:
    return Call("c1", TOOLS[name].tool, {}, "r.1.0.1", 5)


def _essential(text: str) -> str:
    """Without the names of commits, which hold the time."""
    return re.sub(r"\b[0-9a-f]{7,40}\b", "<commit>", text)
