"""Shared by all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest

from tests.support.properties import register_profiles
from tests.support.skip_report import skip_lines

HERE = Path(__file__).parent
ROOMS = ("faults", "page")
"""Rooms with a command of their own, and a mark of the same name."""

register_profiles()

# No test talks to strangers. To read the certificates of everybody they might trust takes each
# process a tenth of a second.
os.environ["SSL_CERT_FILE"] = str(HERE / "nobody.pem")
os.environ.pop("SSL_CERT_DIR", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a room of which no test would be run."""
    left_out = [HERE / room for room in ROOMS if f"not {room}" in config.option.markexpr]
    return True if collection_path in left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Begin elsewhere than the others who run tests beside this process.

    All import the same files. Where nothing is compiled yet, as after a checkout, each would else
    compile all of them at the same time; so it is an equal part, and the rest is there by then.
    """
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # this one runs no tests itself
    # Of what is imported nothing is thrown away: to look for that took a fifth of the time.
    gc.disable()
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1 or session.config.args != session.config.getini("testpaths"):
        return
    for name in list(_names())[number::count]:
        # Whatever is wrong with it is said when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(name)


def _names() -> Iterator[str]:
    for path in sorted(HERE.rglob("test_*.py")):
        inside = path.relative_to(HERE).with_suffix("").parts
        if inside[0] not in ROOMS:
            yield ".".join((HERE.name, *inside))


def pytest_collection_finish() -> None:
    """Leave what was imported alone when what a test left behind is looked for."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once what was skipped, and what to install."""
    skipped = cast("list[pytest.TestReport]", terminalreporter.stats.get("skipped", []))
    reasons = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    for line in skip_lines(reason.removeprefix("Skipped: ") for reason in reasons):
        terminalreporter.write_line(line)
