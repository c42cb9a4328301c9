"""Cases: files with a task, a start state and checks that are programs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CompletedProcess
from evoclaw.evolution.cases import CaseFolder, Split, chosen_cases, read_case
from evoclaw.evolution.checks import Check, MadeCall, RunToCheck
from evoclaw.tools.fake import FakeOps

CHECK = '[[checks]]\nkind = "answer"\ncontains = "x"\n'


def written(folder: Path, text: str, name: str = "one") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_a_case_is_read_with_its_defaults(tmp_path: Path) -> None:
    found = read_case(written(tmp_path, f'message = "Go."\n{CHECK}'))
    assert (found.name, found.case.message, found.case.split) == ("one", "Go.", Split.TRAIN)
    assert (found.workspace, found.records(), found.case.is_recorded) == (None, (), False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('message = "Go."', "checks"),
        (CHECK, "message"),
        (f'message = "Go."\nmesage = 1\n{CHECK}', "mesage"),
        (f'message = "Go."\nsplit = "test"\n{CHECK}', "split"),
        (f'message = "Go."\napprove = "bash"\n{CHECK}', "approve"),
        (f'message = "Go."\nworkspace = "../other"\n{CHECK}', "must exist beside the file"),
        (f'message = "Go."\nrecording = "none.jsonl"\n{CHECK}', "must exist beside the file"),
        ('message = "Go."\n[[checks]]\nkind = "opinion"\n', "opinion"),
        ('message = "Go."\n[[checks]]\nkind = "answer"\n', "needs equals, contains or matches"),
        ('message = "Go."\n[[checks]]\nkind = "answer"\nmatches = "("\n', "regular expression"),
        (
            'message = "Go."\n[[checks]]\nkind = "json_schema"\nschema = {type = "array"}\n',
            '"type": "object"',
        ),
        ("message =", "not TOML"),
    ],
)
def test_a_wrong_case_is_named_with_its_problem(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_case(path)
    assert str(path) in str(caught.value) and problem in str(caught.value)
    written(tmp_path, f'message = "Go."\n{CHECK}', "good")
    cases, problems = CaseFolder(tmp_path).read()
    assert [case.name for case in cases] == ["good"], "the others can be used"
    assert problems == [str(caught.value)]


def test_cases_are_chosen_by_agent_name_and_split(tmp_path: Path) -> None:
    for name, more in (("a", 'agent = "bob"'), ("b", 'split = "sealed"'), ("c", "")):
        written(tmp_path, f'message = "Go."\n{more}\n{CHECK}', name)
    cases, _ = CaseFolder(tmp_path).read()
    usual = [Split.TRAIN, Split.VALIDATION]

    def names(agent: str, *wanted: str, splits: list[Split] = usual) -> list[str]:
        return [case.name for case in chosen_cases(cases, agent, wanted, splits)]

    assert names("bob") == ["a", "c"]
    assert names("ann") == ["c"], "a sealed case is never included by itself"
    assert names("ann", splits=[Split.SEALED]) == ["b"]
    with pytest.raises(ConfigError, match="no case 'a' for agent 'ann'; cases: b, c"):
        names("ann", "a")
    with pytest.raises(ConfigError, match="no case of the split train or validation"):
        names("ann", "b")
    both = [Split.TRAIN, Split.SEALED]
    assert names("ann", splits=both) == ["b", "c"]
    with pytest.raises(ConfigError, match="no sealed case is among the chosen ones"):
        names("ann", "c", splits=both)


class Machine(FakeOps):
    """Says what it was asked to run."""

    async def run(self, argv: Any, **_: Any) -> CompletedProcess:
        if argv[-1] == "hang":
            await asyncio.Event().wait()
        if argv[-1] == "refused":
            raise ToolFailure(ErrorKind.SANDBOX_UNAVAILABLE, "no sandbox")
        out = b"7 passed\n" if argv[-1] == "make test" else b""
        return CompletedProcess(0 if out else 3, out, b"", len(out), 0, "test")


async def problem_of(check: dict[str, Any], workspace: Path, cost: float | None = 0.02) -> str:
    parsed = msgspec.convert(check, Check)  # pyright: ignore[reportArgumentType,reportCallIssue]
    calls = [
        MadeCall("read", {"path": "a.txt", "limit": 3}, True),
        MadeCall("bash", {"command": "ls"}, False),
    ]
    seen = RunToCheck('{"n": 3}', calls, cost, workspace, Machine())
    return await parsed.problem(seen)


PASSING: list[dict[str, Any]] = [
    {"kind": "command", "command": "make test", "contains": "7 passed"},
    {"kind": "command", "command": "false", "exit_code": 3},
    {"kind": "file", "path": "a.txt"},
    {"kind": "file", "path": "a.txt", "equals": "hello"},
    {"kind": "file", "path": "a.txt", "matches": "^h.llo$"},
    {"kind": "file", "path": "b.txt", "absent": True},
    {"kind": "answer", "contains": "n"},
    {"kind": "json_schema", "schema": {"type": "object", "required": ["n"]}},
    {"kind": "called", "tool": "read", "arguments": {"path": "a.txt"}},
    {"kind": "not_called", "tool": "bash", "arguments": {"command": "rm"}},
    {"kind": "max_cost", "dollars": 0.02},
]
FAILING: list[tuple[dict[str, Any], str]] = [
    ({"kind": "command", "command": "false"}, "exited with 3, not 0"),
    ({"kind": "command", "command": "make test", "contains": "8"}, "did not print '8'"),
    ({"kind": "command", "command": "hang", "seconds": 0.01}, "did not end within 0.01 seconds"),
    ({"kind": "command", "command": "refused"}, "could not be run: no sandbox"),
    ({"kind": "file", "path": "b.txt"}, "b.txt does not exist"),
    ({"kind": "file", "path": "../secret"}, "does not exist"),
    ({"kind": "file", "path": "link"}, "does not exist"),
    ({"kind": "file", "path": "a.txt", "equals": "bye"}, "a.txt is 'hello', not 'bye'"),
    ({"kind": "file", "path": "a.txt", "absent": True}, "a.txt exists"),
    ({"kind": "answer", "equals": "3"}, "the answer is"),
    ({"kind": "json_schema", "schema": {"type": "object", "required": ["m"]}}, "missing 'm'"),
    ({"kind": "json_schema", "schema": {"type": "object"}, "path": "a.txt"}, "is not JSON"),
    ({"kind": "called", "tool": "read", "times": 2}, "read was called 1 of 2 times"),
    (
        {"kind": "called", "tool": "read", "arguments": {"path": "other.txt"}},
        'read was called 0 times with {"path":"other.txt"}',
    ),
    ({"kind": "called", "tool": "bash"}, "bash was called 0 times"),
    ({"kind": "not_called", "tool": "bash"}, "bash was called"),
    ({"kind": "max_cost", "dollars": 0.01}, "it cost $0.0200"),
]


def start(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("hello\n")
    (folder / "link").symlink_to(tmp_path / "secret")
    return folder


@pytest.mark.parametrize("check", PASSING, ids=str)
async def test_a_check_that_holds_reports_nothing(tmp_path: Path, check: dict[str, Any]) -> None:
    assert await problem_of(check, start(tmp_path)) == ""


@pytest.mark.parametrize(("check", "problem"), FAILING, ids=str)
async def test_a_check_that_fails_says_why(
    tmp_path: Path, check: dict[str, Any], problem: str
) -> None:
    assert problem in await problem_of(check, start(tmp_path))


async def test_an_unknown_price_is_not_a_low_one(tmp_path: Path) -> None:
    check = {"kind": "max_cost", "dollars": 1}
    assert await problem_of(check, tmp_path, cost=None) == "the price of the model is unknown"
