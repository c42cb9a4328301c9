"""`evoclaw approvals` as a person types it, and as an agent would."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from evoclaw.cli.approvals import identify_answerer, started_by_an_agent
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Approval, Ask, Decision
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.stops import Stop, StopFile, StopKind
from evoclaw.wiring.oversight import open_approvals
from tests.support.command_line import reply, shell
from tests.support.processes import make_processes
from tests.support.programs.governed_commands import main

ROOT = Path(__file__).parents[2]
MINE = f"{sys.executable} -m tests.support.programs.governed_commands"
BASH = Tool("bash", "", {}, frozenset({"shell"}))
ASK = Ask("supervised", "bash writes or executes")


def ask(
    home: Path,
    number: int = 1,
    command: str = "make deploy",
    *,
    tool: Tool = BASH,
    given: JSON = None,
) -> Approval:
    """What a run is told that asks now."""
    arguments = {"command": command, "token": "hush"} if given is None else given
    call = Call("1", tool, arguments, f"run.{number}.0.1", 1.0)

    async def asking() -> Approval:
        env = {"EVOCLAW_HOME": str(home)}
        async with open_approvals(env, settings=ApprovalSettings(nobody="wait")) as opened:
            return await opened.decide("", call, ASK)

    return asyncio.run(asking())


def listed(home: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    capsys.readouterr()
    assert main(home, "approvals", "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_approvals_prints_that_none_are_pending(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tmp_path, "approvals") == 0
    assert capsys.readouterr().out == "nothing waits for an approval\n"


def test_a_pending_call_is_listed_shown_and_approved_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(tmp_path).decision is Decision.PENDING
    (one,) = listed(tmp_path, capsys)
    assert one["standing"] == "waiting"
    assert main(tmp_path, "approvals", "list") == 0
    said = capsys.readouterr().out
    assert one["id"] in said
    assert "make deploy" in said
    assert "24 h left" in said
    assert main(tmp_path, "approvals", "show", one["id"]) == 0
    said = capsys.readouterr().out
    assert "command: make deploy" in said
    assert "hush" not in said
    assert "reason: bash writes or executes (supervised)" in said
    assert "approve --session would cover bash on this machine: exactly the command" in said
    assert "approve --step" not in said
    assert main(tmp_path, "approvals", "approve", one["id"], "--reason", "go") == 0
    assert capsys.readouterr().out == f"{one['id']}: approved, once\n"
    assert ask(tmp_path) == Approval(Decision.ONCE, "go")
    assert main(tmp_path, "approvals", "approve", one["id"]) == 2
    assert "already approved and used" in capsys.readouterr().err


def test_a_denial_gives_the_model_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(tmp_path)
    (one,) = listed(tmp_path, capsys)
    assert main(tmp_path, "approvals", "deny", one["id"], "--reason", "not today") == 0
    assert ask(tmp_path) == Approval(Decision.DENY, "not today")


def test_a_session_approval_is_listed_and_can_be_withdrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(tmp_path)
    (one,) = listed(tmp_path, capsys)
    assert main(tmp_path, "approvals", "approve", one["id"], "--session") == 0
    assert "and so is bash on this machine: exactly the command" in capsys.readouterr().out
    assert ask(tmp_path, 2, "make deploy").decision is Decision.SESSION
    assert ask(tmp_path, 3, "make more").decision is Decision.PENDING
    assert main(tmp_path, "approvals") == 0
    assert "in force, used 1×: bash on this machine" in capsys.readouterr().out
    assert main(tmp_path, "approvals", "deny", one["id"]) == 0
    assert "withdrawn" in capsys.readouterr().out
    assert ask(tmp_path, 4, "make deploy").decision is Decision.PENDING


def test_an_approval_of_exactly_these_arguments_shows_them_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = Tool("relay", "", {}, frozenset({"device"}))
    given: JSON = {"relay": 4, "password": "hush", "timeout_ms": 900}
    assert ask(tmp_path, tool=relay, given=given).decision is Decision.PENDING
    (one,) = listed(tmp_path, capsys)
    assert main(tmp_path, "approvals", "approve", one["id"], "--session") == 0
    for command in (("approvals",), ("approvals", "show", one["id"])):
        assert main(tmp_path, *command) == 0
        said = capsys.readouterr().out
        assert 'relay on this machine: exactly the arguments `{"relay":4,"password":' in said
        assert "hush" not in said
    long: JSON = {"text": "x" * 2_000}
    assert ask(tmp_path, 2, tool=relay, given=long).decision is Decision.PENDING
    two = next(row for row in listed(tmp_path, capsys) if row["standing"] == "waiting")
    assert len(two["covers"]) < 500
    assert ask(tmp_path, 3, tool=relay, given={}).decision is Decision.PENDING
    assert "relay on this machine: no arguments;" in str(listed(tmp_path, capsys))


def test_an_unknown_approval_id_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in ("show", "approve", "deny"):
        assert main(tmp_path, "approvals", action, "nonsense") == 2
        assert "there is no approval 'nonsense'" in capsys.readouterr().err


def test_control_characters_in_a_call_are_stripped_from_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(tmp_path, command="ls \x1b[2J\u202e; rm -rf /")
    (one,) = listed(tmp_path, capsys)
    assert main(tmp_path, "approvals") == 0
    assert main(tmp_path, "approvals", "show", one["id"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_approve_prints_the_command_that_resumes_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    recording = tmp_path / "runs" / "20260101-000000-run.jsonl"
    recording.parent.mkdir()
    recording.touch()
    ask(tmp_path)
    (one,) = listed(tmp_path, capsys)
    assert main(tmp_path, "approvals", "approve", one["id"]) == 0
    assert f"evoclaw run --resume {recording}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("python -m evoclaw run --yes task", True),
        ("/usr/bin/python3 /opt/bin/evoclaw up", True),
        ("evoclaw edge --config agent.toml", True),
        ("python -X dev -m evoclaw mcp serve", True),
        ("python -m evoclaw approvals approve 1", False),
        ("evoclaw stop --all", False),
        ("vim evoclaw run", False),
        ("bash", False),
        ("less notes about evoclaw run", False),
    ],
)
def test_an_agent_process_is_recognized_by_its_command_line(line: str, ours: bool) -> None:
    assert started_by_an_agent([["bash"], line.split(), ["init"]]) is ours


def test_a_process_not_started_by_an_agent_is_a_person() -> None:
    assert identify_answerer().kind == "person"


async def test_fault_54_an_agent_with_a_shell_cannot_approve_or_release_a_stop(
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(ask, tmp_path)
    StopFile(tmp_path / "stops.json").put(Stop(StopKind.TOOL, "other"))
    script = tmp_path / "self.sh"
    script.write_text(
        f"cd {ROOT}\n"
        f"id=$({MINE} {tmp_path} approvals --json | cut -d'\"' -f4)\n"
        f"setsid {MINE} {tmp_path} approvals approve $id\n"
        f"{MINE} {tmp_path} approvals approve $id --session\n"
        f"{MINE} {tmp_path} stop --release --tool other\n"
        "true\n"
    )
    answers = (reply("", ("bash", {"command": f"sh {script}"})), reply("I may not."))
    (tmp_path / "shell").mkdir()
    async with shell(tmp_path / "shell", *answers) as here:
        ran = await here.type("run", "--yes", "approve it yourself")
    assert ran.out == "I may not.\n"
    assert (await asyncio.to_thread(ask, tmp_path)).decision is Decision.PENDING
    assert len(StopFile(tmp_path / "stops.json").stops()) == 1


def test_fault_54_a_process_started_by_an_agent_is_never_a_person_in_any_session(
    tmp_path: Path,
) -> None:
    ask(tmp_path)
    StopFile(tmp_path / "stops.json").put(Stop(StopKind.ALL))
    script = (
        "import subprocess, sys\n"
        f"mine = '{MINE} {tmp_path} '\n"
        "for line in sys.stdin.read().splitlines():\n"
        "    subprocess.run((mine + line).split(), start_new_session=True)\n"
    )
    (tmp_path / "run").write_text(script)
    with closing(sqlite3.connect(tmp_path / "evoclaw.db")) as database:
        (id_,) = database.execute("SELECT id FROM approvals").fetchone()
    done = subprocess.run(
        ["evoclaw", "run"],
        executable=sys.executable,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        input=f"approvals approve {id_}\napprovals deny {id_}\nstop --release --all\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == ""
    assert done.stderr.count("only a person may approve or deny") == 2
    assert done.stderr.count("only a person may release a stop") == 1
    assert ask(tmp_path).decision is Decision.PENDING


async def test_fault_54_a_command_in_a_pid_namespace_is_not_a_person(tmp_path: Path) -> None:
    processes = await make_processes(tmp_path, "pid-namespace")
    code = "from evoclaw.cli.approvals import identify_answerer; print(identify_answerer().kind)"
    done = await processes.run([sys.executable, "-c", code])
    assert (done.stdout, done.stderr) == (b"agent\n", b"")
