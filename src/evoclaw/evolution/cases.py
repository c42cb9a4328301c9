"""Cases: tasks with a start state and checks, each in a TOML file of one folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallStarted,
    Record,
    RunFinished,
    RunStarted,
    StopReason,
    ToolsChanged,
)
from evoclaw.core.messages import JSON, ErrorKind, Reply, ToolResult, UserMessage
from evoclaw.core.ports import Decision
from evoclaw.core.toml import parse_toml
from evoclaw.core.tools import Tool
from evoclaw.evolution.checks import CalledCheck, Check, check_definition
from evoclaw.store.sessions.recordings import read_recording
from evoclaw.transport.private_files import write_private

CASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100_000)]


class Split(StrEnum):
    """Who may see a case."""

    TRAIN = "train"
    """A proposer of genomes."""
    VALIDATION = "validation"
    """Only what judges a proposal."""
    SEALED = "sealed"
    """A person, once for each release."""


class CaseTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that a case offers; its calls are answered from `results`."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str = ""
    parameters: dict[str, JSON] = {}
    """JSON Schema of the arguments; empty: any object."""


class CaseResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of calls that a case answers."""

    tool: str
    arguments: dict[str, JSON] | None = None
    """Only of calls with exactly these; None: of all."""
    text: str = ""
    error: ErrorKind | None = None


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, where it starts, and the checks that decide."""

    message: _Text
    """What the user says."""
    checks: Annotated[tuple[Check, ...], Meta(min_length=1, max_length=50)]
    """All must pass."""
    description: str = ""
    agent: str = ""
    """Only for this agent; empty: for all."""
    split: Split = Split.TRAIN
    workspace: str = ""
    """A folder beside the file, which each run gets a copy of; empty: an empty folder."""
    recording: str = ""
    """A recorded run beside the file, whose results answer the calls."""
    tools: tuple[CaseTool, ...] = ()
    """Tools that do not exist here, such as those of a fleet."""
    results: tuple[CaseResult, ...] = ()
    """What answers calls; the first that fits."""
    approve: tuple[_Text, ...] = ()
    """Tools whose executed calls a person would approve. With a record, the record decides."""
    seconds: Annotated[float, Meta(gt=0, le=3_600)] = 300.0
    """The duration of a run."""

    @property
    def is_recorded(self) -> bool:
        """Whether calls are answered from the record, and none is executed."""
        return bool(self.recording or self.tools or self.results)


class CaseFile(Struct, frozen=True):
    """A case, and where it is."""

    name: str
    path: Path
    case: Case
    attended: bool = True
    """Whether what the case or its record approves is approved; a safety case approves nothing."""

    @property
    def workspace(self) -> Path | None:
        """The folder that each run gets a copy of."""
        return self._beside(self.case.workspace) if self.case.workspace else None

    def records(self) -> Sequence[Record]:
        """The recorded run; `ConfigError` if it cannot be read."""
        if not self.case.recording:
            return ()
        path = self._beside(self.case.recording)
        try:
            return read_recording(path)
        except (OSError, EvoClawError) as problem:
            raise ConfigError(f"{self.path}: cannot read {path.name}: {problem}") from None

    def _beside(self, name: str) -> Path:
        return self.path.parent / name


class CaseFolder:
    """The cases of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> tuple[list[CaseFile], list[str]]:
        """The cases by name, and what is wrong with the other files."""
        cases: list[CaseFile] = []
        problems: list[str] = []
        for path in sorted(self.folder.glob("*.toml")):
            try:
                cases.append(read_case(path))
            except ConfigError as problem:
                problems.append(str(problem))
        return cases, problems

    def find(self, name: str) -> CaseFile:
        """The case of a name; `ConfigError` if there is none, or if it is wrong."""
        path = self.folder / f"{name}.toml"
        if not CASE_NAME.fullmatch(name) or not path.is_file():
            raise ConfigError(f"there is no case {name[:80]!r} in {self.folder}")
        return read_case(path)

    def add(self, name: str, text: str, recording: bytes) -> Path:
        """Write a new case with its recording, for its owner only."""
        path = self.folder / f"{name}.toml"
        if not CASE_NAME.fullmatch(name):
            raise ConfigError(
                f"{name[:80]!r} is not a valid case name; use letters, digits, - and _"
            )
        if path.exists():
            raise ConfigError(f"there is a case {name!r} already; choose another name")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.folder / f"{name}.jsonl", recording)
        write_private(path, text.encode())
        return path


def read_case(path: Path) -> CaseFile:
    """Read and check a case; `ConfigError` names the file and the problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from None
    try:
        case = msgspec.convert(parse_toml(text, str(path)), Case)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{path}: {problem}") from None
    for number, check in enumerate(case.checks, 1):
        if why := check_definition(check):
            raise ConfigError(f"{path}: check {number}: {why}")
    for name in filter(None, (case.workspace, case.recording)):
        beside = path.parent / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not beside.exists():
            raise ConfigError(f"{path}: {name!r} must exist beside the file, or below")
    return CaseFile(path.stem, path, case)


def chosen_cases(
    cases: Iterable[CaseFile], agent: str, names: Sequence[str], splits: Sequence[Split]
) -> list[CaseFile]:
    """The cases of an agent, by name and split; `ConfigError` for a name that is not there."""
    known = {case.name: case for case in cases if case.case.agent in ("", agent)}
    if unknown := [name for name in names if name not in known]:
        listed = ", ".join(known) or "none"
        raise ConfigError(f"there is no case {unknown[0]!r} for agent {agent!r}; cases: {listed}")
    wanted = [known[name] for name in names] if names else list(known.values())
    found = [case for case in wanted if case.case.split in splits]
    if found and Split.SEALED in splits and not has_sealed(found):
        raise ConfigError(
            f"no sealed case is among the chosen ones of agent {agent!r}, so none is opened; leave "
            "out the split sealed, or choose a sealed case"
        )
    if not found:
        raise ConfigError(
            f"there is no case of the split {' or '.join(splits)} for agent {agent!r}; "
            "add one with `evoclaw cases add`"
        )
    return found


def has_sealed(cases: Iterable[CaseFile]) -> bool:
    """Whether a case is sealed, so that running the cases opens it."""
    return any(case.case.split is Split.SEALED for case in cases)


def recorded_tools(records: Iterable[Record]) -> tuple[Tool, ...]:
    """The tools that a recorded run was offered."""
    offered = [record.event.tools for record in records if isinstance(record.event, ToolsChanged)]
    return tuple({tool.name: tool for tools in offered for tool in tools}.values())


def case_from_run(records: Sequence[Record], name: str, agent: str, split: Split) -> str:
    """The text of a case that repeats a recorded run: its successful calls are expected.

    Raises `ConfigError` if the run did not complete, was not the first one of its session, or made
    no call that a check could expect.
    """
    started = next((r.event for r in records if isinstance(r.event, RunStarted)), None)
    ended = next((r.event for r in reversed(records) if isinstance(r.event, RunFinished)), None)
    said = [m for m in started.messages if isinstance(m, UserMessage)] if started else []
    if not said or ended is None or ended.stop is not StopReason.COMPLETED:
        raise ConfigError("the run has not completed; make a case from one that has")
    if started is not None and any(isinstance(m, Reply | ToolResult) for m in started.messages):
        raise ConfigError(
            "the run continues a conversation, and a case has only one message; send a message "
            "that says everything in a new session, and make a case from that run"
        )
    calls = {r.event.call_id: r.event for r in records if isinstance(r.event, CallStarted)}
    good = [
        calls[r.event.result.call_id]
        for r in records
        if isinstance(r.event, CallFinished)
        and r.event.result.error is None
        and r.event.result.call_id in calls
    ]
    checks = list(dict.fromkeys(call.name for call in good))
    if not checks:
        raise ConfigError(
            "the run made no successful call, so nothing can be checked by itself; write a case "
            "with checks of its answer by hand"
        )
    lines = [
        f"message = {_toml_text(said[-1].text)}",
        f"agent = {_toml_text(agent)}",
        f'split = "{split}"',
        f'recording = "{name}.jsonl"',
    ]
    if approved := _approved_tools(records, calls):
        lines.append(f"approve = [{', '.join(map(_toml_text, approved))}]")
    for check in checks:
        tag = CalledCheck.__struct_config__.tag
        lines += ["", "[[checks]]", f'kind = "{tag}"', f"tool = {_toml_text(check)}"]
    return "\n".join(lines) + "\n"


def _approved_tools(records: Iterable[Record], calls: Mapping[str, CallStarted]) -> Sequence[str]:
    """The tools whose calls a person approved in a run."""
    answers = (r.event for r in records if isinstance(r.event, ApprovalAnswered))
    approved = [a.call_id for a in answers if a.decision in (Decision.ONCE, Decision.SESSION)]
    return list(dict.fromkeys(calls[id].name for id in approved if id in calls))


def _toml_text(text: str) -> str:
    """A TOML string; JSON strings are TOML strings, except for one escaped character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
