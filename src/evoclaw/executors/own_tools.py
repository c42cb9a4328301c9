"""`OwnTools`: the user's own tools, Python files in a folder that are reloaded on change."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError, DuplicateTool, SchemaError
from evoclaw.core.messages import ToolResult
from evoclaw.core.ops import ExecOps
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.isolated_tools import IsolatedTools, is_isolated
from evoclaw.executors.local import LocalExecutor

MAX_TOOL_FILES = 200
LoadTools: TypeAlias = Callable[[], Sequence[BoundTool]]
"""Loads the tools of an installed package; `ConfigError` if that is not possible."""
_FileVersion: TypeAlias = tuple[str, int, int]
"""Name, time of the last change in nanoseconds, size; of a package, its name."""


@dataclass(frozen=True, slots=True)
class _LoadedFile:
    tools: tuple[BoundTool, ...] = ()
    problem: str = ""


_Loaded: TypeAlias = Mapping[_FileVersion, _LoadedFile]
_LOADING = _LoadedFile(problem="it is being loaded in a sandbox")


class OwnToolFiles:
    """The loaded files of a folder, each loaded again only when it changed; and some packages.

    A file whose tools are isolated is never run in this process: a sandboxed worker describes it,
    in the background.
    """

    def __init__(
        self,
        folder: Path | None,
        reserved: Collection[str],
        isolated: IsolatedTools | None = None,
        packages: Mapping[str, LoadTools] | None = None,
    ) -> None:
        self.folder = folder
        self._packages = {(name, 0, 0): load for name, load in (packages or {}).items()}
        self._loaded: _Loaded = {}
        self._reserved, self._isolated = frozenset(reserved), isolated
        self._versions: tuple[_FileVersion, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    def refresh(self) -> _Loaded:
        """What each file defines, or why it cannot be used; the same object until one changes."""
        versions = self._look()
        if versions != self._versions:
            known, self._versions = self._loaded, versions
            self._loaded = {
                version: known.get(version) or self._load(version) for version in versions
            }
        return self._loaded

    async def settle(self) -> None:
        """Load all files, and wait for those that a sandbox describes."""
        self.refresh()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End what is still being loaded."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _look(self) -> tuple[_FileVersion, ...]:
        if self.folder is None:
            return tuple(self._packages)
        try:
            with os.scandir(self.folder) as entries:
                files = [
                    (entry.name, entry.stat())
                    for entry in entries
                    if entry.name.endswith(".py") and not entry.name.startswith("_")
                ]
        except OSError:
            return tuple(self._packages)
        found = sorted((name, about.st_mtime_ns, about.st_size) for name, about in files)
        return (*self._packages, *found[:MAX_TOOL_FILES])

    def _load(self, version: _FileVersion) -> _LoadedFile:
        try:
            if (load := self._packages.get(version)) is not None:
                return self._checked(load())
            assert self.folder is not None
            file = self.folder / version[0]
            source = self._source(file)
            if not is_isolated(source):
                return self._checked(_run_file(file))
            if self._isolated is None:
                raise ConfigError("it has isolated tools, which cannot be used here")
            task = asyncio.create_task(self._describe(version, source, self._isolated))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        except Exception as problem:
            # The user's code may raise anything: the other files must still load.
            return _LoadedFile(problem=_reason(problem))
        return _LOADING

    async def _describe(self, version: _FileVersion, source: str, isolated: IsolatedTools) -> None:
        try:
            found = self._checked(await isolated.describe(version[0], source))
        except (ConfigError, DuplicateTool, SchemaError) as problem:
            found = _LoadedFile(problem=_reason(problem))
        if version in self._loaded:
            self._loaded = {**self._loaded, version: found}

    def _source(self, file: Path) -> str:
        if file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError("other users may change it; run `chmod go-w` on it")
        return file.read_text()

    def _checked(self, tools: Sequence[BoundTool]) -> _LoadedFile:
        if not tools:
            raise ConfigError("it has no function with @tool")
        if taken := [tool.name for tool in tools if tool.name in self._reserved]:
            raise DuplicateTool(taken[0])
        LocalExecutor(tools, given={kind: None for tool in tools for kind in tool.dependencies})
        return _LoadedFile(tuple(tools))


def _run_file(file: Path) -> list[BoundTool]:
    """Run a file in this process; its tools."""
    spec = importlib.util.spec_from_file_location(f"evoclaw_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [value for value in vars(module).values() if isinstance(value, BoundTool)]
    if any(bound.tool.isolated for bound in found):
        raise ConfigError("write isolated=True literally: it is read before the file is run")
    return found


def _reason(problem: Exception) -> str:
    if isinstance(problem, ConfigError | DuplicateTool | SchemaError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


class OwnTools:
    """The tools of a folder's files, and of packages.

    They run in this process, as its owner's own code, unless they are isolated. A file that cannot
    be used is left out and named in `problems`; the others stay.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        given: Mapping[type, object],
        reserved: Collection[str] = (),
        exec_for: Callable[[Call], ExecOps] | None = None,
        isolated: IsolatedTools | None = None,
        packages: Mapping[str, LoadTools] | None = None,
        files: OwnToolFiles | None = None,
    ) -> None:
        """Choose the folder.

        Args:
            folder: The folder of the files; it need not exist yet. None: no files.
            given: The dependencies that tools may use, by Protocol.
            reserved: Names that are taken.
            exec_for: The processes for one call, if they differ per call.
            isolated: Loads and runs isolated tools; without it, they cannot be used.
            packages: What loads the tools of each package, by a name for messages.
            files: The files of the folder, if they are loaded already.
        """
        self._files = files or OwnToolFiles(folder, reserved, isolated, packages)
        self._given, self._exec_for = dict(given), exec_for
        self._seen: _Loaded | None = None
        self._executor = LocalExecutor(())
        self.problems: dict[str, str] = {}
        """Why a file is not used, by its name."""

    def with_dependencies(self, given: Mapping[type, object]) -> OwnTools:
        """The same files with other dependencies; no file is run again for it."""
        return OwnTools(self._files.folder, given=given, exec_for=self._exec_for, files=self._files)

    async def settle(self) -> None:
        """Wait until all files are loaded; a file that changes later is loaded by itself."""
        await self._files.settle()

    async def close(self) -> None:
        """End what is still being loaded."""
        await self._files.close()

    def tools(self) -> Sequence[Tool]:
        """The tools there are now; the same object while no file changed."""
        seen = self._files.refresh()
        if seen is not self._seen:
            self._seen = seen
            self._bind(seen)
        return self._executor.tools()

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call to completion."""
        return await self._executor.execute(call, progress)

    def _bind(self, loaded: _Loaded) -> None:
        """Bind the tools of all files to their dependencies; a file in conflict is left out."""
        self.problems = {}
        bound: dict[str, BoundTool] = {}
        for (name, _, _), file in loaded.items():
            try:
                if file.problem:
                    raise ConfigError(file.problem)
                if taken := [tool.name for tool in file.tools if tool.name in bound]:
                    raise DuplicateTool(taken[0])
                LocalExecutor(file.tools, given=self._given, sound=True)
                bound |= {tool.name: tool for tool in file.tools}
            except (ConfigError, DuplicateTool) as problem:
                self.problems[name] = str(problem)
        # Their schemas were checked when the files were loaded.
        self._executor = LocalExecutor(
            bound.values(), given=self._given, exec_for=self._exec_for, sound=True
        )
