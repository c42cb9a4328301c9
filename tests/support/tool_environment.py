"""A place where each tool works: real files, servers, sessions, an edge, an sshd."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from evoclaw.core.agent import Agent
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.canvases import Canvas
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.ports import Approval, Approver, Ask, Decision, Executor, Ports, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.browser.chromium import Chromium
from evoclaw.executors.browser.processes import find_browser
from evoclaw.executors.canvases import FileCanvas
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.executors.ssh.files import SshFiles
from evoclaw.executors.ssh.processes import SshProcesses
from evoclaw.executors.url_guard import UrlGuard
from evoclaw.executors.web_fetch import WebFetcher
from evoclaw.executors.web_search import Brave, Searxng
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import Permissions
from evoclaw.orchestrator.fleet.edge_routes import FleetNodes
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.sessions.conversations import Conversations, StoredTodos
from evoclaw.orchestrator.sessions.run_sessions import RunSessions
from evoclaw.orchestrator.sessions.session_run import SessionRun
from evoclaw.providers.scripted import Scripted, says
from evoclaw.skills.disclosure import RegistrySkillReader
from evoclaw.skills.registry import SkillRegistry
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.browser import Browser
from evoclaw.tools.define import tool
from evoclaw.tools.image import RunModelVision, Vision
from evoclaw.tools.nodes import Nodes
from evoclaw.tools.question import ScriptedUser, UserPrompter
from evoclaw.tools.sessions import Sessions
from evoclaw.tools.sets import coding, everything, usable
from evoclaw.tools.skill import SkillReader
from evoclaw.tools.todos import TodoList
from evoclaw.tools.web import CodeSearcher, Fetcher, WebSearcher
from tests.matrix.table import TABLE, TODO
from tests.support.fleet import FleetHarness, open_fleet
from tests.support.git import plain
from tests.support.skills import guide, write_skill
from tests.support.sshd import sshd
from tests.support.web_pages import PageServer, answer, serve_pages

HERE = "127.0.0.1"


class Counting:
    """Notes every call that reaches the tools."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.reached: list[str] = []

    def tools(self) -> Sequence[Tool]:
        return self.inner.tools()

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        self.reached.append(call.name)
        return await self.inner.execute(call, progress)


@dataclass
class ApproveAll:
    """A person who agrees to everything."""

    asked: list[str] = field(default_factory=list[str])

    async def approve(self, call: Call, ask: Ask) -> Approval:
        self.asked.append(call.name)
        return Approval(Decision.ONCE)


@dataclass
class SharedToolServers:
    """What all tests of a module share."""

    folder: Path
    site: PageServer
    fleet: FleetHarness
    blinks: list[int]
    ssh: Executor | str
    """The tools over SSH, or why there are none."""
    chromium: Chromium | str

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def refill(self) -> None:
        """Put the workspace back as it was; the folder itself stays the same one."""
        for path in self.workspace.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.copytree(self.folder / "template", self.workspace, dirs_exist_ok=True)
        self.site.asked.clear()
        self.blinks.clear()


@asynccontextmanager
async def open_tool_servers(folder: Path, *, ssh: bool) -> AsyncGenerator[SharedToolServers]:
    """Servers, a browser, an edge and perhaps an sshd, for as long as the block goes on."""
    _template(folder / "template")
    workspace = folder / "workspace"
    workspace.mkdir()
    write_skill(
        folder / "skills", "haiku", SKILL_md=guide("haiku", "Writes haiku.", "Count to five.")
    )
    blinks: list[int] = []
    device = LocalExecutor(
        [*coding(), _blink(blinks)], files=LocalFiles(workspace), exec=LocalProcesses(workspace)
    )
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(serve_pages(_pages()))
        fleet = await stack.enter_async_context(open_fleet(folder, executor=device))
        there = await _over_ssh(folder, stack) if ssh else "not asked for"
        program = find_browser()
        chromium = (
            program if isinstance(program, str) else Chromium(program, guard=UrlGuard([HERE]))
        )
        if isinstance(chromium, Chromium):
            stack.push_async_callback(chromium.close)
        yield SharedToolServers(folder, site, fleet, blinks, there, chromium)


def _template(folder: Path) -> None:
    (folder / "src").mkdir(parents=True)
    (folder / "notes.txt").write_text("buy tea\n")
    (folder / "src" / "app.py").write_text("def main():\n    return 1\n")
    dot = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(dot, "PNG")
    (folder / "dot.png").write_bytes(dot.getvalue())
    plain(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    plain(folder, "config", "user.name", "Bowen")
    plain(folder, "config", "user.email", "bowen@example.org")
    plain(folder, "add", ".")
    plain(folder, "commit", "--quiet", "-m", "Begin")
    (folder / "notes.txt").write_text("buy tea\ncall Ann\n")


def _pages() -> dict[str, str | bytes]:
    def found(shape: JSON) -> bytes:
        return answer(msgspec.json.encode(shape).decode(), "Content-Type: application/json")

    brave = {"web": {"results": [{"title": "All about tea", "url": "https://tea.example/"}]}}
    hit = {"title": "Kettles", "url": "https://code.example/", "content": "brew(water)"}
    page = "<title>Tea</title><h1>Tea</h1><p>Tea is ready when the water is hot.</p>"
    return {"/page": page, "/brave": found(brave), "/search": found({"results": [hit]})}


def _blink(blinks: list[int]) -> BoundTool:
    @tool("device")
    async def blink(times: int) -> str:
        """Blink."""
        blinks.append(times)
        return f"blinked {times} times"

    return blink


async def _over_ssh(folder: Path, stack: AsyncExitStack) -> Executor | str:
    if importlib.util.find_spec("asyncssh") is None:
        return "asyncssh is not installed"
    (folder / "sshd").mkdir()
    try:
        server = stack.enter_context(sshd(folder / "sshd"))
    except pytest.skip.Exception as why:
        return str(why)
    connection = await stack.enter_async_context(server.connection())
    root = str(folder / "workspace")
    files, processes = SshFiles(connection, root), SshProcesses(connection, root)
    return LocalExecutor(coding(), files=files, exec=processes)


@dataclass
class ToolTestbed:
    """What one test has to itself."""

    grounds: SharedToolServers
    held: frozenset[str]
    """What the agent in question holds."""
    store: SessionStore
    level: Level = Level.FULL
    approver: Approver = field(default_factory=ApproveAll)
    lead: Scripted = field(default_factory=Scripted)
    person: ScriptedUser = field(default_factory=lambda: ScriptedUser("green"))
    machine: dict[type, object] = field(default_factory=dict[type, object])
    """All that is handed to tools but for what belongs to a session."""
    executors: list[Counting] = field(default_factory=list[Counting])
    talks: Conversations = field(init=False)

    def __post_init__(self) -> None:
        agents = (
            Agent("lead", "scripted/model", "You lead.", self.held),
            Agent("help", "scripted/model", "You help.", frozenset({"*"})),
        )
        self.talks = Conversations(
            self.store,
            {agent.name: agent for agent in agents},
            self._equip,
            questions=Questions(self.store.questions, local_person=self.person),
        )

    def _equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        if agent.name == "help":
            return Ports(Scripted(says("It is done.")), self.local({}), self.rules(agent))
        return Ports(self.lead, self.local(given), self.rules(agent), self.approver)

    def rules(self, agent: Agent) -> Chain:
        """The policies of an agent, as the wiring makes them."""
        return Chain((Permissions(agent.capabilities), Autonomy(self.level)))

    def local(self, given: Mapping[type, object]) -> Counting:
        """The tools on this machine."""
        handed = {**self.machine, **given}
        made = Counting(LocalExecutor(usable(everything(), handed), given=handed))
        self.executors.append(made)
        return made

    async def create_sessions(self) -> None:
        """Open the session `main`, one below it that said something, and a todo."""
        await self.talks.open("lead", session_id="main")
        await StoredTodos(self.store, "main").replace([TODO])
        held = frozenset({"*"})
        await self.store.create(Session("earlier", "help", "", "", "main", 1, held))
        async for _ in self.talks.send("earlier", "good morning"):
            pass

    @asynccontextmanager
    async def on(self, backend: str) -> AsyncGenerator[Counting]:
        """The tools of a backend."""
        match backend:
            case "ssh":
                if isinstance(self.grounds.ssh, str):
                    pytest.skip(self.grounds.ssh)
                yield Counting(self.grounds.ssh)
            case "edge":
                yield Counting(self.grounds.fleet.orchestrator.edge("pi", queue=5))
            case _:
                async with self.run_of_main() as run:
                    yield self.local(
                        {
                            TodoList: StoredTodos(self.store, "main"),
                            UserPrompter: self.talks.questions.person("main"),
                            Sessions: RunSessions(self.talks, run),
                        }
                    )

    @asynccontextmanager
    async def run_of_main(self) -> AsyncGenerator[SessionRun]:
        """A run in `main` whose turns a test takes itself."""
        session = await self.store.session("main")
        assert session is not None
        stored = await self.store.create_run("ab" * 16, "main", "Use it.")
        deadline = Deadline(60)
        deadline.start()
        run = await self.talks.prepare(session, stored, deadline, None, None)
        try:
            yield run
        finally:
            if tasks := [child.task for child in run.subruns]:
                await asyncio.wait(tasks, timeout=10)
            deadline.release()

    async def observed_effects(self) -> dict[str, JSON]:
        """What can be seen of what was done, by kind."""
        stored = await self.store.sessions("")
        folder = self.grounds.folder
        return {
            "files": _contents(self.grounds.workspace),
            "canvas": _contents(folder / "canvas"),
            "web": list(self.grounds.site.asked),
            "todos": await self.store.todos("main"),
            # The run in `main` is the one that looks.
            "sessions": {
                one.session.id: one.last and one.last.id
                for one in stored
                if one.session.id != "main"
            },
            "person": [asked.text for asked in self.person.asked],
            "device": list(self.grounds.blinks),
        }

    def usable(self, name: str) -> None:
        """Skip the test if the tool cannot be had here."""
        if name == "browser" and isinstance(self.grounds.chromium, str):
            pytest.skip(self.grounds.chromium)


@asynccontextmanager
async def open_tool_testbed(
    grounds: SharedToolServers, held: frozenset[str], *, level: Level = Level.FULL
) -> AsyncGenerator[ToolTestbed]:
    """Everything as at the beginning, for an agent that holds these permissions."""
    grounds.refill()
    shutil.rmtree(grounds.folder / "canvas", ignore_errors=True)
    database = grounds.folder / "sessions.db"
    for path in grounds.folder.glob("sessions.db*"):
        path.unlink()
    async with await SessionStore.open(database, durable=False) as store:
        place = ToolTestbed(grounds, held, store, level, machine=_machine(grounds, held))
        await place.create_sessions()
        try:
            yield place
        finally:
            if isinstance(grounds.chromium, Chromium):
                await grounds.chromium.end("main")


def _machine(grounds: SharedToolServers, held: frozenset[str]) -> dict[type, object]:
    site, fleet = grounds.site.url("").rstrip("/"), grounds.fleet.orchestrator
    given: dict[type, object] = {
        FileOps: LocalFiles(grounds.workspace),
        ExecOps: LocalProcesses(grounds.workspace),
        Fetcher: WebFetcher(UrlGuard([HERE])),
        WebSearcher: Brave("a-key", url=f"{site}/brave"),
        CodeSearcher: Searxng(site),
        Canvas: FileCanvas(grounds.folder / "canvas" / "main.html"),
        SkillReader: RegistrySkillReader(SkillRegistry([grounds.folder / "skills"])),
        Vision: RunModelVision(model_sees_images=True),
        Nodes: FleetNodes(fleet.fleet, fleet.edge_call(held)),
    }
    if isinstance(grounds.chromium, Chromium):
        given[Browser] = grounds.chromium.session("main")
    return given


def arguments_of(name: str, grounds: SharedToolServers) -> dict[str, JSON]:
    """What the table says to call a tool with."""
    site = grounds.site.url("").rstrip("/")
    return {
        key: value.replace("{site}", site) if isinstance(value, str) else value
        for key, value in TABLE[name].arguments.items()
    }


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
