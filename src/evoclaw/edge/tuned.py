"""The device's tools under its genome: what one call may take at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from evoclaw.core.ports import Executor
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import Toolset
from evoclaw.edge.genome import Genome
from evoclaw.executors.wrapped import Wrapper


class Tuned(Wrapper):
    """The inner tools, none of them with more time than the genome gives a call."""

    def __init__(self, inner: Executor, genome: Callable[[], Genome]) -> None:
        super().__init__(inner)
        self._genome = genome
        self._seconds: float | None = None

    def tools(self) -> Sequence[Tool]:
        """The inner tools; others when the genome has changed."""
        seconds = self._genome().call_seconds
        if seconds != self._seconds:
            self._seconds, self._seen = seconds, None
        return super().tools()

    def change(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Cut their times."""
        most = self._seconds
        if most is None:
            return tools
        return Toolset(
            (
                replace(
                    tool, timeout=min(tool.timeout, most), max_timeout=min(tool.max_timeout, most)
                )
                for tool in tools
            ),
            like=tools,
        )
