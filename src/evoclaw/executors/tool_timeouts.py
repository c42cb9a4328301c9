"""Other timeouts for tools than their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool


class ToolTimeouts(OfferStep):
    """Gives tools other timeouts than their own, never above their maximum."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        for name, timeout in seconds.items():
            if timeout <= 0:
                raise ConfigError(f"the timeout of {name!r} must be above 0 seconds")
        self._seconds = dict(seconds)

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Replace the timeouts that are configured."""
        return tuple(
            replace(tool, timeout=min(self._seconds[tool.name], tool.max_timeout))
            if tool.name in self._seconds
            else tool
            for tool in tools
        )
