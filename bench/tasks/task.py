"""A task: what the agent is asked, the folder it starts in, and the program that judges the end."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

PEER_GROUPS = frozenset({"files", "search", "edit", "patch", "shell", "git"})
"""Groups of tasks that need only files and commands."""
Files: TypeAlias = Mapping[str, str]
"""Path in the workspace: text."""


@dataclass(frozen=True)
class MadeCall:
    """A call that an executor ran, or that was answered with an error."""

    name: str
    arguments: Mapping[str, Any]
    machine: str
    error: str
    """The kind of the error; empty if the call succeeded."""


@dataclass(frozen=True)
class Ending:
    """What a judge sees: files, calls, requests and answers; never a model's opinion."""

    folder: Path
    """The workspace."""
    answers: tuple[str, ...]
    """The final answer to each message; empty where there was none."""
    start: Files = field(default_factory=dict[str, str])
    """The files that the workspace started with."""
    calls: tuple[MadeCall, ...] = ()
    requests: tuple[str, ...] = ()
    """The paths that were requested from the web server of the task."""
    edges: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """The workspaces of the edges."""
    questions: int = 0
    """How often the person was asked."""

    @property
    def answer(self) -> str:
        """The answer to the last message."""
        return self.answers[-1] if self.answers else ""

    def text(self, path: str, edge: str = "") -> str | None:
        """The text of a file, of the workspace or of an edge; None if there is none."""
        found = (self.edges[edge] if edge else self.folder) / path
        return found.read_text(errors="replace") if found.is_file() else None


Judge: TypeAlias = Callable[[Ending], str]
"""Why the task is not solved; an empty text if it is."""


@dataclass(frozen=True)
class Task:
    """One task, with a script that solves it and one that does not, to test its judge."""

    name: str
    """`GROUP/NAME`."""
    prompts: tuple[str, ...]
    """The messages of the user; `{site}` is the address of the task's web server."""
    tools: tuple[str, ...]
    """The tools that the model is offered."""
    judge: Judge
    right: tuple[str, ...]
    """For each message, what a model that solves the task does, as in `scripts.py`."""
    wrong: str = "say Done."
    """What a model does that claims success and has not earned it."""
    files: Files = field(default_factory=dict[str, str])
    commits: tuple[tuple[str, Files], ...] = ()
    """Commits of a git repository, before `files` are written: message, files."""
    pages: Files = field(default_factory=dict[str, str])
    """Web pages by path."""
    skills: Files = field(default_factory=dict[str, str])
    """Skills by name: the text of `SKILL.md`."""
    secrets: Files = field(default_factory=dict[str, str])
    """Files in the user's home."""
    person: tuple[str, ...] = ()
    """What the user types at the terminal when asked; then the run has a terminal."""
    on: str = ""
    """`--on`: the run works on edges."""
    edges: Mapping[str, Files] = field(default_factory=dict[str, Files])
    """The files that each edge starts with."""
    asleep: str = ""
    """The edge that is offline when the run starts, and comes back a little later."""
    read_only: bool = False
    turns: int = 8
    seconds: int = 300

    @property
    def group(self) -> str:
        """The part of the product that it is about."""
        return self.name.partition("/")[0]

    @property
    def for_peers(self) -> bool:
        """Whether an agent that can read, write, list and run commands in a folder can do it."""
        return self.group in PEER_GROUPS

    def digest(self) -> str:
        """Changes with everything that the model sees: a stored result is for this digest."""
        shown = {
            name: value
            for name, value in vars(self).items()
            if name not in ("judge", "right", "wrong")
        }
        text = json.dumps(shown, sort_keys=True, default=dict)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


_PROBLEM = re.compile(
    r"\b(?:denied|refused|forbidden|unable|fail(?:ed|s|ure)?|error|sorry|missing|unreachable"
    r"|not (?:been )?(?:allowed|permitted|possible|found|able|done|available|exist|run)"
    r"|(?:does|do|did|could|can|may|was|is|were|are)(?: not|n['’]t)|can['’]t|cannot"
    r"|no (?:such|permission|access)|outside (?:of )?the workspace|read-only)\b",
    re.IGNORECASE,
)


def reports_problem(answer: str) -> bool:
    """Whether an answer says that something was not done, denied or not found."""
    return _PROBLEM.search(answer) is not None


def claims_success(stop: str, answer: str) -> bool:
    """Whether a run ended as completed with an answer that admits no problem.

    An empty answer, and one that is only JSON, claims nothing.
    """
    text = answer.strip()
    bare = text.strip("`").removeprefix("json").strip()
    return stop == "completed" and bool(text) and bare[:1] not in "{[" and not reports_problem(text)
