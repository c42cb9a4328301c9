"""The emergency stop: what it covers, that it holds at once, and that it fails closed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import CallFinished, RunFinished, StopReason
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Allow, Deny, Ports
from evoclaw.core.run import run, watch
from evoclaw.core.tools import Call, Context, Effect, Tool
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.stops import (
    STOPS_FILE_NAME,
    Stop,
    StopFile,
    StopKind,
    Stops,
    UntrustedStopFile,
    cancel_on_stop,
)
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.catalogue import load
from evoclaw.tools.define import tool

READ = Tool("read", "", {}, effect=Effect.READ, aliases=("cat",))
BASH = Tool("bash", "", {}, frozenset({"shell"}))
FETCH = Tool("webfetch", "", {}, frozenset({"network"}), effect=Effect.READ)
EDGES = Tool("edge_call", "", {}, frozenset({"device"}))
ALL = Stop(StopKind.ALL, reason="fire")
ADVICE = "evoclaw stop --release --all"


def call(tool: Tool = READ, agent: str = "", **arguments: JSON) -> Call:
    context = Context(principal=Principal(agent=agent))
    return Call("1", tool, arguments, "run.1.0.1", 1.0, context=context)


def file(folder: Path) -> StopFile:
    return StopFile(folder / STOPS_FILE_NAME)


async def denied(stops: Stops, asked: Call) -> bool:
    verdict = await stops.judge(asked)
    assert isinstance(verdict, Allow | Deny)
    assert isinstance(verdict, Allow) or verdict.code == "stopped"
    return isinstance(verdict, Deny)


async def test_without_a_stop_file_nothing_is_stopped(tmp_path: Path) -> None:
    stops = Stops(file(tmp_path))
    assert not await denied(stops, call())
    assert isinstance(await stops.admit(1), Allow)
    assert not file(tmp_path).path.exists()


async def test_a_stop_applies_to_the_next_call_until_it_is_released(tmp_path: Path) -> None:
    stops, there = Stops(file(tmp_path)), file(tmp_path)
    for _ in range(20):  # quicker than a clock ticks
        there.put(ALL)
        assert await denied(stops, call())
        assert isinstance(await stops.admit(1), Deny)
        assert there.release(StopKind.ALL) is not None
        assert not await denied(stops, call())
        assert isinstance(await stops.admit(1), Allow)


async def test_the_model_gets_the_reason_and_is_told_not_to_work_around_it(tmp_path: Path) -> None:
    file(tmp_path).put(ALL)
    verdict = await Stops(file(tmp_path)).judge(call())
    assert isinstance(verdict, Deny)
    assert verdict.reason.startswith("a person stopped everything (fire). Do not try another way")


@pytest.mark.parametrize(
    ("stop", "stopped", "free"),
    [
        (Stop(StopKind.TOOL, "bash"), [call(BASH)], [call(READ), call(EDGES, agent_id="pi")]),
        (Stop(StopKind.TOOL, "BASH"), [call(BASH)], [call(READ)]),
        (Stop(StopKind.TOOL, "cat"), [call(READ)], [call(BASH)]),
        (
            Stop(StopKind.TOOL, "bash"),
            [call(EDGES, agent_id="pi", action="bash")],
            [call(EDGES, agent_id="pi", action="read"), call(READ, action="bash")],
        ),
        (
            Stop(StopKind.AGENT, "pi"),
            [
                call(READ, agent="pi"),
                call(EDGES, agent_id="pi"),
                call(EDGES, agent_id=["other", "pi"]),
                call(EDGES, agent_id="*"),
                call(EDGES, agent_id="type:camera"),
                call(Tool("nodes", "", {}, frozenset({"device"})), node="pi"),
            ],
            [call(READ), call(EDGES, agent_id="other"), call(READ, agent_id="pi")],
        ),
        (
            Stop(StopKind.NETWORK),
            [call(FETCH), call(BASH), call(Tool("ask", "", {}, effect=Effect.READ, sends=True))],
            [call(READ), call(EDGES, agent_id="pi")],
        ),
        (Stop(StopKind.ALL), [call(READ), call(EDGES, agent_id="pi")], []),
    ],
)
async def test_each_kind_of_stop_denies_the_right_calls(
    tmp_path: Path, stop: Stop, stopped: list[Call], free: list[Call]
) -> None:
    file(tmp_path).put(stop)
    stops = Stops(file(tmp_path))
    assert [await denied(stops, one) for one in stopped] == [True] * len(stopped)
    assert [await denied(stops, one) for one in free] == [False] * len(free)


async def test_a_stopped_agent_does_not_call_its_model(tmp_path: Path) -> None:
    file(tmp_path).put(Stop(StopKind.AGENT, "pi"))
    assert isinstance(await Stops(file(tmp_path), agent="pi").admit(1), Deny)
    assert isinstance(await Stops(file(tmp_path), agent="other").admit(1), Allow)
    assert await denied(Stops(file(tmp_path), targets=["pi"]), call())


async def test_commands_without_egress_continue_while_the_network_is_stopped(
    tmp_path: Path,
) -> None:
    file(tmp_path).put(Stop(StopKind.NETWORK))
    sandboxed = Stops(file(tmp_path), shell_offline=True)
    assert not await denied(sandboxed, call(BASH))
    assert await denied(sandboxed, call(FETCH))


async def test_stops_of_all_files_apply(tmp_path: Path) -> None:
    here, there = file(tmp_path / "machine"), file(tmp_path / "edge")
    stops = Stops(here, there)
    there.put(Stop(StopKind.TOOL, "bash"))
    assert await denied(stops, call(BASH))
    here.put(ALL)
    assert await denied(stops, call(READ))
    here.release(StopKind.ALL)
    assert not await denied(stops, call(READ))
    assert await denied(stops, call(BASH))


def damage(path: Path, how: str) -> None:
    match how:
        case "torn":
            path.write_bytes(path.read_bytes()[:-5])
        case "empty":
            path.write_bytes(b"")
        case "of a later version":
            path.write_text('{"stops": [], "levels": 3}')
        case "of an unknown kind":
            path.write_text('{"stops": [{"kind": "planet"}]}')
        case "deep":
            path.write_text("[" * 100_000)
        case "huge":
            path.write_bytes(b" " * 2_000_000)
        case "for all to write":
            path.chmod(0o666)
        case "a link":
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")
        case "a folder":
            path.unlink()
            path.mkdir()
        case _:
            path.unlink()
            os.mkfifo(path)


@pytest.mark.parametrize(
    "how",
    ["torn", "empty", "of a later version", "of an unknown kind", "deep", "huge",
     "for all to write", "a link", "a folder", "a pipe"],
)  # fmt: skip
async def test_an_unsound_stop_file_stops_everything_until_repaired(
    tmp_path: Path, how: str
) -> None:
    there = file(tmp_path)
    there.put(Stop(StopKind.TOOL, "other"))
    stops = Stops(there)
    assert not await denied(stops, call())
    damage(there.path, how)
    for _ in range(2):
        verdict = await stops.judge(call())
        assert isinstance(verdict, Deny)
        assert ADVICE in verdict.reason
    assert isinstance(await stops.admit(1), Deny)
    with pytest.raises(UntrustedStopFile):
        there.put(Stop(StopKind.TOOL, "bash"))
    with pytest.raises(UntrustedStopFile):
        there.release(StopKind.TOOL, "other")
    there.release(StopKind.ALL)
    assert not await denied(stops, call())


async def test_stop_all_works_although_the_stop_file_is_damaged(tmp_path: Path) -> None:
    there = file(tmp_path)
    tmp_path.joinpath(STOPS_FILE_NAME).write_text("?")
    there.put(ALL)
    assert there.stops() == (ALL,)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything; run as a plain user")
async def test_an_unreadable_folder_stops_everything(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o000)
    try:
        assert await denied(Stops(file(folder)), call())
    finally:
        folder.chmod(0o700)


async def test_a_folder_path_that_is_a_file_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    assert await denied(Stops(file(tmp_path / "data")), call())
    with pytest.raises(ConfigError, match="cannot write"):
        file(tmp_path / "data").put(ALL)


async def test_deleting_the_stop_file_releases_nothing(tmp_path: Path) -> None:
    there = file(tmp_path)
    stops = Stops(there)
    there.put(ALL)
    assert await denied(stops, call())
    there.path.unlink()
    assert await denied(stops, call())
    assert there.release(StopKind.ALL) is None
    assert not await denied(stops, call())


def _put_many(path: Path, name: str) -> None:
    for number in range(25):
        StopFile(path).put(Stop(StopKind.TOOL, f"{name}{number}"))


@pytest.mark.process
def test_concurrent_processes_lose_no_stops(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    each = [
        spawn.Process(target=_put_many, args=(tmp_path / STOPS_FILE_NAME, name)) for name in "abc"
    ]
    for process in each:
        process.start()
    for process in each:
        process.join(60)
    assert [process.exitcode for process in each] == [0, 0, 0]
    assert len(file(tmp_path).stops()) == 75
    assert (tmp_path / STOPS_FILE_NAME).stat().st_mode & 0o022 == 0


def test_only_the_owner_may_read_the_stop_file(tmp_path: Path) -> None:
    (tmp_path / f"{STOPS_FILE_NAME}.new").touch(0o644)  # left by a crash of an earlier version
    file(tmp_path).put(Stop(StopKind.TOOL, "bash", "the reason"))
    assert stat.S_IMODE((tmp_path / STOPS_FILE_NAME).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write for others; run as root")
def test_a_stop_that_root_sets_belongs_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, 65_534, 65_534)
    file(tmp_path).put(Stop(StopKind.TOOL, "bash"))
    for name in (STOPS_FILE_NAME, f"{STOPS_FILE_NAME}.lock"):
        assert (tmp_path / name).stat().st_uid == 65_534, name


async def test_stop_all_ends_a_running_call(tmp_path: Path) -> None:
    began = asyncio.Event()

    @tool(name="hang")
    async def hang() -> str:
        """Never end."""
        began.set()
        await asyncio.Event().wait()
        return ""

    stops, deadline = Stops(file(tmp_path)), Deadline(60)
    ports = Ports(Scripted(calls(("hang", {})), says("?")), LocalExecutor([hang]), Chain((stops,)))
    events: list[object] = []

    async def follow() -> None:
        events.extend([record.event async for record in watch("go", ports, deadline=deadline)])

    before = asyncio.all_tasks()
    async with asyncio.timeout(20), cancel_on_stop(stops, deadline.cancel, interval_s=0.01):
        running = asyncio.create_task(follow())
        await began.wait()
        file(tmp_path).put(ALL)
        await running
    (finished,) = [event for event in events if isinstance(event, CallFinished)]
    assert finished.result.error is ErrorKind.CANCELLED
    assert isinstance(events[-1], RunFinished)
    assert events[-1].stop is StopReason.CANCELLED
    assert asyncio.all_tasks() == before


async def test_a_stopped_tool_is_denied_and_the_run_continues(tmp_path: Path) -> None:
    file(tmp_path).put(Stop(StopKind.TOOL, "read", "broken"))
    (tmp_path / "a.txt").write_text("hello")
    model = Scripted(calls(("read", {"path": "a.txt"})), says("It is stopped."))
    executor = LocalExecutor(load(("read",)), files=LocalFiles(tmp_path))
    ports = Ports(model, executor, Stops(file(tmp_path)))
    result = await run("read it", ports)
    assert result.text == "It is stopped."
    told = model.requests[1].messages[-1].text
    assert told.startswith("Error: Tool 'read' was not run: a person stopped the tool read (broken")


@pytest.mark.parametrize(
    "path",
    [
        "../home/stops.json",
        "{home}/stops.json",
        "{home}/approvals.db",
        "{home}/evoclaw.toml",
        "link/stops.json",
        ".evoclaw/stops.json",
        ".EvoClaw/approvals.db",
        "evoclaw.toml",
        "agent.toml",
        ".evoclaw/skills/mine/SKILL.md",
        ".evoclaw/approved-skills.json",
    ],
)
async def test_fault_55_an_agent_cannot_change_its_rules_stops_approvals_or_skills(
    tmp_path: Path, path: str
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "link").symlink_to(home)
    file(home).put(ALL)
    asked = path.format(home=home)
    (work / asked).parent.mkdir(parents=True, exist_ok=True)
    if not (work / asked).exists():
        (work / asked).write_text("fire\n")
    written = {"path": asked, "content": '{"stops": []}'}
    edited = {"path": asked, "old_string": "fire", "new_string": "x"}
    added = f"*** Begin Patch\n*** Update File: {asked}\n-fire\n+x\n*** End Patch\n"
    model = Scripted(
        calls(("write", written), ("apply_patch", {"patch": added}), ("edit", edited)),
        says("I may not."),
    )
    tools = load(("read", "write", "edit", "apply_patch"))
    ports = Ports(model, LocalExecutor(tools, files=LocalFiles(work)), Chain(()))
    before = _all_files(tmp_path)
    results = [
        record.event.result
        async for record in watch("release it", ports)
        if isinstance(record.event, CallFinished)
    ]
    assert len(results) == 3
    assert all(result.error is ErrorKind.PERMISSION_DENIED for result in results)
    assert _all_files(tmp_path) == before


def _all_files(folder: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()}
