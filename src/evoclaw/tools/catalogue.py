"""The tool catalogue: every built-in tool, where it can run and what it needs there.

`evoclaw run`, the service, edges, MCP and `evoclaw tools --all` all ask this table. A tool's module
is imported when the tool is loaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib import import_module

from msgspec import Struct

from evoclaw.core.bound_tools import BoundTool


class RunsOn(StrEnum):
    """The host processes that can run a tool."""

    ORCHESTRATOR = "orchestrator"
    """In the orchestrator: the tool works on its stores, its people or the fleet."""
    EDGE = "edge"
    """On an edge, over its files, processes and devices."""
    LOCAL = "local"
    """In `evoclaw run` and `evoclaw chat`, on the machine where they are started."""

    @property
    def pipeline(self) -> str:
        """The declared pipeline whose steps apply to calls there; `policy explain` lists them."""
        return "service" if self is RunsOn.ORCHESTRATOR else self.value


class CatalogueEntry(Struct, frozen=True):
    """One built-in tool."""

    name: str
    module: str
    """Below `evoclaw.tools`; empty if the tool is built where it runs, from what is there."""
    runs_on: frozenset[RunsOn]
    program: str = ""
    """The program that must be on the PATH of the machine that runs it."""
    as_program: bool = True
    """Whether the skill `desktop-tools` has it as a program `dt-NAME`."""

    def load(self) -> BoundTool:
        """The tool itself; `LookupError` if it is built where it runs."""
        if not self.module:
            raise LookupError(f"the tool {self.name!r} is built where it runs")
        return _load(self.module, self.name)

    def missing_program(self) -> str:
        """The program it needs and this machine has not; empty if nothing is missing."""
        return self.program if self.program and shutil.which(self.program) is None else ""


@cache
def _load(module: str, name: str) -> BoundTool:
    return getattr(import_module(f"evoclaw.tools.{module}"), name)


_MACHINE = frozenset({RunsOn.LOCAL, RunsOn.EDGE})
_SERVICE = frozenset({RunsOn.LOCAL, RunsOn.ORCHESTRATOR})
_ANYWHERE = frozenset(RunsOn)
_ROWS: tuple[tuple[str, str, frozenset[RunsOn], str], ...] = (
    ("read write edit", "files", _MACHINE, ""),
    ("glob grep", "search", _MACHINE, ""),
    ("apply_patch", "patch.apply_patch", _MACHINE, ""),
    ("bash", "shell", _MACHINE, "bash"),
    ("git_status git_diff git_log", "git.reading", _MACHINE, "git"),
    ("git_commit git_branch", "git.writing", _MACHINE, "git"),
    ("webfetch", "web", _MACHINE, ""),
    ("websearch codesearch", "web", _ANYWHERE, ""),
    ("question", "question", _SERVICE, ""),
    ("todowrite todoread", "todos", _SERVICE, ""),
    ("skill", "skill", _SERVICE, ""),
    (
        "task sessions_list sessions_history sessions_send sessions_spawn session_status "
        "agents_list",
        "sessions",
        _SERVICE,
        "",
    ),
    ("browser", "browser", _SERVICE, ""),
    ("canvas", "canvas", _SERVICE, ""),
    ("nodes", "nodes", _SERVICE, ""),
    ("image", "image", _MACHINE, ""),
)
_HOST_ROWS: tuple[tuple[str, str, frozenset[RunsOn], str], ...] = (
    ("device device_write notify", "device", frozenset({RunsOn.EDGE}), ""),
    ("artifact", "", frozenset({RunsOn.EDGE}), ""),
    ("jobs", "nodes", _SERVICE, ""),
    ("edge_call", "", _SERVICE, ""),
)
"""Tools that only make sense inside a host process: no program can take their place."""
CATALOGUE: Mapping[str, CatalogueEntry] = {
    name: CatalogueEntry(name, module, runs_on, program, as_program)
    for rows, as_program in ((_ROWS, True), (_HOST_ROWS, False))
    for names, module, runs_on, program in rows
    for name in names.split()
}
"""By name, in the order in which tools are listed."""
FLEET_TOOL_NAMES = frozenset({"edge_call", "jobs", "nodes"})
"""Tools of the orchestrator that concern the whole fleet."""


def entries_on(host: RunsOn) -> tuple[CatalogueEntry, ...]:
    """The tools that a host can run, in the order of the catalogue."""
    return tuple(entry for entry in CATALOGUE.values() if host in entry.runs_on)


def tools_on(host: RunsOn) -> tuple[BoundTool, ...]:
    """The tools that a host can load and whose program this machine has."""
    return with_program(entry.load() for entry in entries_on(host) if entry.module)


def load(names: Iterable[str]) -> tuple[BoundTool, ...]:
    """The tools of these names; `KeyError` for a name that the catalogue does not have."""
    return tuple(CATALOGUE[name].load() for name in names)


def with_program(tools: Iterable[BoundTool]) -> tuple[BoundTool, ...]:
    """Of some tools of the catalogue, those whose program this machine has."""
    return tuple(tool for tool in tools if not CATALOGUE[tool.name].missing_program())
