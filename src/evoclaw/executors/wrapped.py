"""Retries around an executor, and other timeouts for its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.pipeline import OfferStep
from evoclaw.core.ports import Executor, Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset

PASSING = frozenset({ErrorKind.TIMEOUT, ErrorKind.UNKNOWN, ErrorKind.AGENT_OFFLINE})
"""Failures that another try may not meet."""


class Wrapper:
    """An executor around another one. As it stands, it changes nothing."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self._seen: Sequence[Tool] | None = None
        self._changed: Sequence[Tool] = ()

    def tools(self) -> Sequence[Tool]:
        """The inner tools, changed; the same object while the inner one is the same."""
        seen = self.inner.tools()
        if seen is not self._seen:
            changed = self.change(seen)
            known = changed if isinstance(changed, Toolset) else seen
            self._changed = Toolset(changed, like=known)
            self._seen = seen
        return self._changed

    def change(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """What becomes of the inner tools."""
        return tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Hand the call on."""
        return await self.inner.execute(call, progress)


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


class WithRetry(Wrapper):
    """Tries again what failed in passing, if running it twice does no harm."""

    def __init__(self, inner: Executor, attempts: int = 2) -> None:
        super().__init__(inner)
        if attempts < 1:
            raise ConfigError("a call needs at least 1 attempt")
        self._attempts = attempts

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Run one call, several times if need be; the last answer counts."""
        for _ in range(1, self._attempts if call.safe_to_repeat else 1):
            try:
                result = await super().execute(call, progress)
            except ToolFailure as failure:
                if failure.kind not in PASSING:
                    raise
            else:
                if result.error not in PASSING:
                    return result
            call = next_attempt(call)
        return await super().execute(call, progress)


def next_attempt(call: Call) -> Call:
    """The same call under the request id of its next attempt, so no journal answers for it."""
    stem, _, attempt = call.request_id.rpartition(".")
    if not stem or not attempt.isdigit():
        return call
    return replace(call, request_id=f"{stem}.{int(attempt) + 1}")
