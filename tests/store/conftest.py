"""Databases for the tests of the stores: each store is tried on both."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from secrets import token_hex

import pytest

from tests.support.databases import Place
from tests.support.postgres import Postgres, why_no_postgres


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


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a test keeps what it stores: a file, or a schema that nobody else has."""
    if request.param == "sqlite":
        return Place(tmp_path / "evoclaw.db")
    return Place(request.getfixturevalue("postgres_url"), f"test_{token_hex(6)}")
