"""Connections to a PostgreSQL server that take the SQL of the stores, and its errors."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import errors
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.sql import SQL, Identifier
from psycopg.types.numeric import NumericBinaryLoader

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.database import (
    Conflict,
    DamagedStore,
    QueryResult,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from evoclaw.store.databases.dialect import multi_row_insert, to_postgres

CONNECT_TIMEOUT_S = 10
"""Seconds to establish a connection."""
STATEMENT_TIMEOUT_S = 60
"""Seconds for one statement."""
STALLED_TRANSACTION_TIMEOUT_S = 2
"""Seconds after which a process that stalls in a transaction loses its connection and its locks."""
LOCK_TIMEOUT_S = 5
"""Seconds to wait for a row that another process is changing."""
INSERT_BATCH_ROWS = 32
"""Rows that one INSERT writes."""
MAX_PREPARED_STATEMENTS = 500
"""Statements that the server keeps prepared."""
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SESSION_SETTINGS = SQL(
    "SET statement_timeout = {statement}; SET lock_timeout = {turn}; "
    "SET idle_in_transaction_session_timeout = {stalled}; SET search_path = {schema}; "
    "SET synchronous_commit = {durable}; SET default_transaction_isolation = 'read committed'; "
    "SET jit = off"
)
# Plans are made once, perhaps while a table is still empty: then a scan of it looks cheap.
_STEP_SETTINGS = b"; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off"
_CONFIGURATION_ERRORS = (
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.InvalidSchemaName,
    errors.InsufficientPrivilege,
)


_CONNECTION_LOST_ERRORS = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
)


def lock_key(schema: str) -> int:
    """The key of the advisory lock that a process holds while it creates tables and functions."""
    return zlib.crc32(f"evoclaw {schema}".encode())


class PostgresServer(Struct, frozen=True):
    """The address of a PostgreSQL database, and the schema to use."""

    url: str
    schema: str = "evoclaw"
    password: str = ""
    durable: bool = True

    @property
    def name(self) -> str:
        """The address without credentials, for messages."""
        parts = self._conninfo
        host, port = parts.get("host") or "localhost", parts.get("port") or 5432
        return f"postgresql://{host}:{port}/{parts.get('dbname') or ''}#{self.schema}"

    @property
    def _conninfo(self) -> dict[str, Any]:
        try:
            return dict(conninfo_to_dict(self.url))
        except psycopg.Error:
            raise ConfigError(
                "[store] url is not a PostgreSQL address; write postgresql://user@host:5432/database"
            ) from None

    def validate(self) -> None:
        """Raise `ConfigError` for a URL with a password, or a bad schema name."""
        if self._conninfo.get("password"):
            raise ConfigError(
                "[store] url must not contain a password; set EVOCLAW_STORE_PASSWORD, or "
                "password_file in [store]"
            )
        if not _SCHEMA_NAME.fullmatch(self.schema):
            raise ConfigError(f"{self.schema!r} cannot be the name of a schema; use a-z, 0-9 and _")

    def connect(self, *, read_only: bool = False) -> psycopg.Connection:
        """A configured connection; errors of psycopg are raised unchanged."""
        connection = psycopg.connect(
            self.url,
            autocommit=True,
            cursor_factory=psycopg.RawCursor,
            application_name="evoclaw",
            **self.connect_arguments,
        )
        try:
            connection.prepared_max = MAX_PREPARED_STATEMENTS
            connection.adapters.register_dumper(int, _Int8Dumper)
            connection.adapters.register_dumper(bool, _Int8Dumper)
            connection.adapters.register_loader("numeric", _NumericLoader)
            connection.execute(self._settings)
            if read_only:
                connection.execute(b"SET default_transaction_read_only = on")
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect_for_steps(self) -> psycopg.AsyncConnection:
        """A connection for statements that are always the same."""
        connection = await psycopg.AsyncConnection.connect(
            self.url,
            autocommit=True,
            cursor_factory=psycopg.AsyncRawCursor,
            application_name="evoclaw",
            **self.connect_arguments,
        )
        try:
            connection.adapters.register_dumper(int, _Int8Dumper)
            await connection.execute(self._settings + _STEP_SETTINGS)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def connect_to_listen(self) -> psycopg.AsyncConnection:
        """A connection that only receives notices."""
        return await psycopg.AsyncConnection.connect(
            self.url, autocommit=True, application_name="evoclaw notices", **self.connect_arguments
        )

    @property
    def connect_arguments(self) -> dict[str, Any]:
        """The connection arguments besides the URL: timeouts and keepalives."""
        return {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "client_encoding": "utf8",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": STATEMENT_TIMEOUT_S * 1000,
            "password": self.password or None,
        }

    @property
    def _settings(self) -> bytes:
        query = _SESSION_SETTINGS.format(
            statement=STATEMENT_TIMEOUT_S * 1000,
            turn=LOCK_TIMEOUT_S * 1000,
            stalled=STALLED_TRANSACTION_TIMEOUT_S * 1000,
            schema=Identifier(self.schema),
            durable="on" if self.durable else "off",
        )
        return query.as_bytes(None)


class _Int8Dumper(Dumper):
    """Dumps integers and booleans as `int8`, the type of all integer columns."""

    oid = 20
    format = Format.BINARY

    def dump(self, obj: int) -> bytes:
        try:
            return struct.pack(">q", obj)
        except struct.error:
            raise OverflowError("cannot store an integer of more than 64 bits") from None


class _NumericLoader(NumericBinaryLoader):
    """Loads `numeric`, the type of a sum of integers, as an int or a float."""

    def load(self, data: Any) -> Any:
        number: Decimal = super().load(data)
        return int(number) if number == number.to_integral_value() else float(number)


class PostgresConnection:
    """A connection that takes the SQL of the stores, in SQLite's dialect."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.raw = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> QueryResult:
        """Run one statement."""
        return self.raw.execute(_query(statement), values or None, binary=True)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> QueryResult:
        """Run one statement for each of the rows; as multi-row inserts where possible."""
        cursor, all_rows = self.raw.cursor(binary=True), list(rows)
        if multi_row_insert(statement, 1):
            for start in range(0, len(all_rows), INSERT_BATCH_ROWS):
                batch = all_rows[start : start + INSERT_BATCH_ROWS]
                cursor.execute(_multi_row_query(statement, len(batch)), list(chain(*batch)))
            return cursor
        query = _query(statement)
        if len(all_rows) > 1:
            cursor.executemany(query, all_rows[:-1])
        # `executemany` is a pipeline, after which the server does not count the idle time until the
        # next statement: a process that stalls here would keep its locks forever. So the last
        # statement is sent separately.
        return cursor.execute(query, all_rows[-1]) if all_rows else cursor


@lru_cache(maxsize=1024)
def _query(statement: str) -> bytes:
    return to_postgres(statement).encode()


@lru_cache(maxsize=1024)
def _multi_row_query(statement: str, count: int) -> bytes:
    return to_postgres(multi_row_insert(statement, count) or statement).encode()


def translate_error(problem: BaseException, name: str) -> BaseException:
    """The error for the caller; an error in a statement itself is returned unchanged."""
    found = problem
    match problem:
        case errors.DiskFull():
            found = StoreFull(name)
        case errors.UniqueViolation():
            found = Conflict(f"{name}: {_one_line(problem)}")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            found = DamagedStore(name, _one_line(problem))
        case psycopg.Error() if isinstance(problem, _CONFIGURATION_ERRORS):
            found = ConfigError(
                f"cannot use {name}: {_one_line(problem)}; check [store] and the permissions there"
            )
        case psycopg.Error() if isinstance(
            problem, (psycopg.OperationalError, *_CONNECTION_LOST_ERRORS)
        ):
            found = StoreUnavailable(f"{name}: {_one_line(problem)}")
        case psycopg.DataError() | psycopg.InternalError():
            found = StoreError(f"{name}: {_one_line(problem)}")
        case _:
            pass
    if found is not problem:
        found.__cause__ = problem
    return found


def is_connection_lost(
    problem: BaseException, connection: psycopg.Connection | psycopg.AsyncConnection
) -> bool:
    """Whether the connection was lost, rather than one statement failed."""
    return connection.closed or isinstance(problem, _CONNECTION_LOST_ERRORS)


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def read_password(file: str) -> str:
    """The password in a file."""
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError as problem:
        raise ConfigError(
            f"cannot read [store] password_file: {problem}; check the path and its permissions"
        ) from None
