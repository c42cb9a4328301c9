"""Shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import cast

import pytest

from tests.support.databases import Place
from tests.support.no_processes import NoProcesses
from tests.support.postgres import Postgres, why_no_postgres
from tests.support.properties import register_profiles
from tests.support.skip_report import skip_lines

HERE = Path(__file__).parent
ROOMS = {"faults": "faults", "page": "page"}
"""Rooms of which every test has a mark."""
# What these are about is processes and services: `make quick` leaves them out.
for _room in (
    *("api", "bench", "cli", "deploy", "executors", "fleet", "flows"),
    *("governed", "matrix", "sandbox", "seat", "transport"),
):
    ROOMS[_room] = "process"

register_profiles()

# `make test &` in a script ignores Ctrl-C, and every process started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test talks to strangers. To read the certificates of everybody they might trust takes each
# process a tenth of a second.
os.environ["SSL_CERT_FILE"] = str(HERE / "nobody.pem")
os.environ.pop("SSL_CERT_DIR", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a room of which no test would be run."""
    return True if collection_path in _left_out(config) else None


def _left_out(config: pytest.Config) -> list[Path]:
    return [HERE / room for room, mark in ROOMS.items() if f"not {mark}" in config.option.markexpr]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of a room, before tests are selected by their marks."""
    for item in items:
        inside = item.path.relative_to(HERE).parts if HERE in item.path.parents else ("",)
        if mark := ROOMS.get(inside[0]):
            item.add_marker(mark)
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker("process")


def pytest_configure(config: pytest.Config) -> None:
    """Where tests that start processes are left out, see to it that no other test starts one."""
    if "not process" in config.option.markexpr:
        config.pluginmanager.register(NoProcesses())


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
    for name in list(_names(session.config))[number::count]:
        # Whatever is wrong with it is said when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(name)


def _names(config: pytest.Config) -> Iterator[str]:
    left_out = _left_out(config)
    for path in sorted(HERE.rglob("test_*.py")):
        if not any(room in path.parents for room in left_out):
            yield ".".join((HERE.name, *path.relative_to(HERE).with_suffix("").parts))


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


@pytest.fixture(scope="session")
def postgres_server() -> Generator[Postgres]:
    """A PostgreSQL that all tests share; it goes on all the time."""
    if reason := why_no_postgres():
        pytest.skip(reason)
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Postgres) -> str:
    """Where it is."""
    return postgres_server.url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a test keeps what it stores: a file, or a schema that nobody else has."""
    if request.param == "sqlite":
        return Place(tmp_path / "evoclaw.db")
    return Place(request.getfixturevalue("postgres_url"), f"test_{token_hex(6)}")
