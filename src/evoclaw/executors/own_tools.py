"""`OwnTools`: the user's own tools, Python files in a folder that are reloaded on change."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError, DuplicateTool, SchemaError
from evoclaw.core.messages import ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.local import LocalExecutor

MAX_TOOL_FILES = 200


class OwnTools:
    """The tools of a folder's files. They run in this process, as its owner's own code.

    A file that cannot be used is left out and named in `problems`; the others stay.
    """

    def __init__(
        self, folder: Path, *, given: Mapping[type, object], reserved: Collection[str] = ()
    ) -> None:
        """Choose the folder.

        Args:
            folder: The folder of the files; it need not exist yet.
            given: The dependencies that tools may use, by Protocol.
            reserved: Names that are taken.
        """
        self.folder, self._given, self._reserved = folder, dict(given), frozenset(reserved)
        self._seen: tuple[tuple[str, int, int], ...] | None = None
        self._executor = LocalExecutor(())
        self.problems: dict[str, str] = {}
        """Why a file is not used, by its name."""

    def tools(self) -> Sequence[Tool]:
        """The tools there are now; the same object while no file changed."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            self._load([self.folder / name for name, _, _ in seen])
        return self._executor.tools()

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call to completion."""
        return await self._executor.execute(call, progress)

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        try:
            files = sorted(self.folder.glob("*.py"))[:MAX_TOOL_FILES]
            stats = [(file.name, file.stat()) for file in files if not file.name.startswith("_")]
        except OSError:
            return ()
        return tuple((name, about.st_mtime_ns, about.st_size) for name, about in stats)

    def _load(self, files: Sequence[Path]) -> None:
        self.problems = {}
        bound: dict[str, BoundTool] = {}
        for file in files:
            try:
                for tool in self._read(file):
                    if tool.name in bound or tool.name in self._reserved:
                        raise DuplicateTool(tool.name)
                    LocalExecutor([tool], given=self._given)
                    bound[tool.name] = tool
            except (ConfigError, DuplicateTool, SchemaError) as problem:
                self.problems[file.name] = str(problem)
            except Exception as problem:
                # The user's code may raise anything: the other files must still load.
                self.problems[file.name] = f"{type(problem).__name__}: {problem}"
        self._executor = LocalExecutor(bound.values(), given=self._given)

    def _read(self, file: Path) -> list[BoundTool]:
        if file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError("others may change it; run chmod go-w")
        spec = importlib.util.spec_from_file_location(f"evoclaw_own_{file.stem}", file)
        if spec is None or spec.loader is None:
            raise ConfigError("it is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = [value for value in vars(module).values() if isinstance(value, BoundTool)]
        if not found:
            raise ConfigError("it has no function with @tool")
        return found
