"""See to it that tests which are not marked `process` start none."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})


class NoProcesses:
    """A plugin that fails a test which starts a process."""

    def __init__(self) -> None:
        self._started: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        # The standard library itself asks `uname` for the processor.
        if event in _EVENTS and arguments[:1] != ("uname",):
            self._started.append(f"{event} {arguments[:2]}"[:200])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Run a test, with what was started for it so far."""
        try:
            yield
        finally:
            started, self._started = self._started, []
            if started:
                pytest.fail(f"starts a process: mark it `process` ({started[0]})", pytrace=False)
