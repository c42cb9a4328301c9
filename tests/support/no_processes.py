"""See to it that tests which are not marked `process` start none."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

_PLATFORM = (("uname",), ("file",))
"""What the standard library itself starts, once, to learn what machine it is on."""


class NoProcesses:
    """A plugin that fails a test which starts a process."""

    def __init__(self) -> None:
        self._started: list[str] = []
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in _EVENTS and arguments[:1] not in _PLATFORM:
            self._started.append(f"{event} {arguments[:2]}"[:200])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Forget what was started before, while tests were collected."""
        self._started.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Run a test, with what was started for it so far."""
        try:
            yield
        finally:
            started, self._started = self._started, []
            if started:
                pytest.fail(f"starts a process: mark it `process` ({started[0]})", pytrace=False)
