"""The memory of agents: observations, with full-text search, by tenant and user.

SQLite searches with FTS5. PostgreSQL walks the newest observations of the owner, each with its
`tsvector`, until enough of them match. Both get only the words of a query: no user text reaches a
query language.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from evoclaw.core.labels import CLEAN, LOCAL_PRINCIPAL, Label
from evoclaw.core.messages import JSON
from evoclaw.store.databases.column_compression import compress_by, decompress_by
from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    add_checksum,
    verify_checksum,
)
from evoclaw.store.databases.steps import Procedure, Step

MAX_QUERY_WORDS, MAX_WORD_CHARS = 16, 64
"""Words of a query, and their length; further and longer words are ignored."""
MAX_RESULTS = 100
MAX_SEARCHED_OBSERVATIONS = 10_000
"""The newest observations of one owner, which a query searches: SQLite blocks other requests
meanwhile, and PostgreSQL may have to read all of them."""
MAX_RANKED_OBSERVATIONS = 100
"""The newest of the matching observations, which are ranked."""
DELETE_BATCH_ROWS = 500
"""Observations that are deleted in one transaction, which blocks other requests."""
_WORD = re.compile(r"[^\W_]+")
_STOP_WORDS = frozenset(
    word
    for line in (
        "a an the this that these those and or but not of to in on at by for from with about as",
        "into is are was were be been am do does did has have had i you he she it we they me him",
        "her us them my your his its our their what which who when where why how can could would",
        "should will please",
    )
    for word in line.split()
)
"""Words that are in every text, and so are not searched."""

_OBSERVATIONS = (
    """CREATE TABLE memory_observations (
        seq INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        owner TEXT NOT NULL,
        session_id TEXT NOT NULL,
        agent TEXT NOT NULL,
        event_type TEXT NOT NULL,
        at REAL NOT NULL,
        labelled INTEGER NOT NULL,
        whose TEXT NOT NULL,
        content TEXT NOT NULL,
        rest BLOB NOT NULL,
        UNIQUE (tenant, owner, id)
    ) STRICT""",
    "CREATE INDEX memory_owners ON memory_observations (tenant, owner, seq)",
    "CREATE INDEX memory_sessions ON memory_observations (tenant, session_id, seq)",
    "CREATE INDEX memory_age ON memory_observations (at)",
)
_FTS5 = (
    "CREATE VIRTUAL TABLE memory_words USING fts5 (whose, content, "
    "content='memory_observations', content_rowid='seq', tokenize='porter unicode61')",
    """CREATE TRIGGER memory_kept AFTER INSERT ON memory_observations BEGIN
        INSERT INTO memory_words (rowid, whose, content)
        VALUES (new.seq, new.whose, new.content);
    END""",
    """CREATE TRIGGER memory_forgotten AFTER DELETE ON memory_observations BEGIN
        INSERT INTO memory_words (memory_words, rowid, whose, content)
        VALUES ('delete', old.seq, old.whose, old.content);
    END""",
)
_TSVECTOR = (
    "ALTER TABLE memory_observations ADD COLUMN words tsvector "
    "GENERATED ALWAYS AS (to_tsvector('english'::regconfig, content)) STORED",
    "CREATE INDEX memory_words ON memory_observations USING gin (words)",
)
# New words wait in a list that every search reads whole, and then cost more than the rows; and the
# index holds the words of all owners.
_WITHOUT_GIN = ("DROP INDEX memory_words",)
# Each index costs a record in the WAL for each observation. An observation belongs to one session,
# so one index finds both. Observations arrive in the order of their times, so PostgreSQL needs to
# know only the oldest and the newest of every hundred pages.
_FEWER_INDEXES = (
    "DROP INDEX memory_sessions",
    "DROP INDEX memory_age",
    "ALTER TABLE memory_observations DROP CONSTRAINT memory_observations_tenant_owner_id_key",
    "CREATE UNIQUE INDEX memory_ids ON memory_observations (tenant, session_id, id, owner)",
    "CREATE INDEX memory_ages ON memory_observations USING brin (at) WITH (autosummarize = on)",
)


def _put_observations(connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
    connection.executemany(_PUT, rows)


_STORED_COLUMNS = (
    "tenant, id, owner, session_id, agent, event_type, at, labelled, whose, content, rest"
)
_PUT = (
    f"INSERT INTO memory_observations ({_STORED_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, owner, id) DO NOTHING"
)
_GIVEN_OBSERVATIONS = """
SELECT o->>0, o->>1, o->>2, o->>3, o->>4, o->>5, (o->>6)::float8, (o->>7)::bigint, o->>8, o->>9,
    decode(o->>10, 'base64')
FROM jsonb_array_elements(a->0) AS o
"""
PUT_OBSERVATIONS = Procedure(
    name="put_observations",
    sqlite=_put_observations,
    # ON CONFLICT writes one more record to the WAL for each row, so it is only for a conflict: if
    # an observation is there twice, or another process stores it just now.
    postgres=f"""
BEGIN
    BEGIN
        INSERT INTO memory_observations ({_STORED_COLUMNS})
        {_GIVEN_OBSERVATIONS}
        WHERE NOT EXISTS (SELECT 1 FROM memory_observations AS t WHERE t.tenant = o->>0
            AND t.session_id = o->>3 AND t.id = o->>1 AND t.owner = o->>2);
    EXCEPTION WHEN unique_violation THEN
        INSERT INTO memory_observations ({_STORED_COLUMNS})
        {_GIVEN_OBSERVATIONS}
        ON CONFLICT DO NOTHING;
    END;
    RETURN NULL;
END
""",
)
SCHEMA = Schema(
    "memory",
    # Third, `rest` compressed by the other columns: older versions cannot read it.
    ((*_OBSERVATIONS, *_FTS5), (), (), ()),
    checksummed=(("memory_observations", ("rest",)),),
    postgres_migrations=((*_OBSERVATIONS, *_TSVECTOR), _WITHOUT_GIN, None, _FEWER_INDEXES),
    procedures=(PUT_OBSERVATIONS,),
)
_COLUMNS = "o.seq, o.id, o.session_id, o.agent, o.event_type, o.at, o.content, o.rest"
# The owner is in the index too: otherwise the texts of all tenants would be searched.
_FIND_SQLITE = f"""
SELECT {_COLUMNS}, -bm25(memory_words, 0.0, 1.0) AS score FROM memory_words
CROSS JOIN memory_observations o ON o.seq = memory_words.rowid
WHERE memory_words MATCH ?1 AND memory_words.rowid >= coalesce((
    SELECT s.seq FROM memory_observations s WHERE s.tenant = ?2 AND s.owner = ?3
    ORDER BY s.seq DESC LIMIT 1 OFFSET ?4), 0)
    AND {{conditions}}
ORDER BY memory_words.rowid DESC LIMIT {{ranked}}
"""
# A subquery is computed once, and not for each observation.
_ASKED = "(SELECT websearch_to_tsquery('english'::regconfig, ?1))"
_FIND_POSTGRES = f"""
SELECT {_COLUMNS}, ts_rank(o.words, {_ASKED}) AS score
FROM (SELECT * FROM memory_observations s WHERE s.tenant = ?2 AND s.owner = ?3
    ORDER BY s.seq DESC LIMIT ?4 + 1) o
WHERE o.words @@ {_ASKED} AND {{conditions}}
ORDER BY o.seq DESC LIMIT {{ranked}}
"""


class EventType(StrEnum):
    """The kind of an observation."""

    TOOL_CALL = "tool_call"
    LLM_RESPONSE = "llm_response"
    DECISION = "decision"
    ERROR = "error"


class Observation(Struct, frozen=True, omit_defaults=True):
    """Something that happened to an agent."""

    id: str
    session_id: str
    agent_name: str
    event_type: EventType
    content: str
    metadata: dict[str, JSON] = {}
    tags: tuple[str, ...] = ()
    """An observation tagged `private` is never stored."""
    timestamp: float = 0.0
    """Unix time, seconds."""
    label: Label = CLEAN
    """The label of everything that it was made from."""


class MemoryHit(Struct, frozen=True):
    """An observation that matches, and its score."""

    seq: int
    """Its row number; later observations have higher ones."""
    observation: Observation
    score: float = 0.0


class MemoryFilter(Struct, frozen=True):
    """Which observations to search; an empty field does not filter."""

    agent: str = ""
    session_id: str = ""
    excluded_session: str = ""
    """A session to leave out."""
    clean_only: bool = False
    """Leave out observations made from untrusted or private text."""


NO_FILTER = MemoryFilter()


class _ObservationExtras(Struct, frozen=True, omit_defaults=True):
    metadata: dict[str, JSON] = {}
    tags: tuple[str, ...] = ()
    label: Label = CLEAN


_EXTRAS_DECODER = msgspec.json.Decoder(_ObservationExtras)


class MemoryStore:
    """The observations of one user of a tenant."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        tenant: str = LOCAL_PRINCIPAL.tenant,
        owner: str = "",
    ) -> None:
        """`owner` is the user whose sessions these are; empty for the user of this machine."""
        self._database, self._clock = database, clock
        self.tenant, self.owner = tenant, owner
        self._owner_token = f"o{sha256(msgspec.json.encode((tenant, owner))).hexdigest()[:32]}"

    def of(self, tenant: str, owner: str = "") -> MemoryStore:
        """The observations of another user, in the same database."""
        return MemoryStore(self._database, self._clock, tenant, owner)

    def now(self) -> float:
        """The time by which observations expire."""
        return self._clock()

    async def add(self, observations: Sequence[Observation]) -> None:
        """Store observations; existing ones are unchanged."""
        await self.add_rows([self.row(observation) for observation in observations])

    async def add_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Store observations of any owners, in one step; `rows` are values of `row`."""
        await self._database.apply(Step(PUT_OBSERVATIONS, (rows,)))

    async def find(
        self, query: str, limit: int = 5, filter_: MemoryFilter = NO_FILTER
    ) -> list[MemoryHit]:
        """The best matches for a query, which may be any text; of equal ones the newest first."""
        words = query_words(query)
        if not words:
            return []
        conditions, values = self._where(filter_)
        find = _FIND_SQLITE if self._database.dialect == "sqlite" else _FIND_POSTGRES
        newest = find.format(conditions=conditions, ranked=MAX_RANKED_OBSERVATIONS)
        statement = f"SELECT * FROM ({newest}) fitting ORDER BY score DESC, seq DESC LIMIT ?"
        searched = (self.tenant, self.owner, MAX_SEARCHED_OBSERVATIONS)
        given = (self._query(words), *searched, *values, min(max(limit, 0), MAX_RESULTS))
        rows = await self._database.read(
            lambda c: c.execute(statement, given).fetchall(), allow_stale=True
        )
        return [self._hit(row) for row in rows]

    def _query(self, words: Sequence[str]) -> str:
        if self._database.dialect == "postgres":
            return " or ".join(words)
        terms = " OR ".join(f'"{word}"' for word in words)
        return f'whose : "{self._owner_token}" AND content : ({terms})'

    async def around(self, hit: MemoryHit, before: int = 2, after: int = 2) -> list[MemoryHit]:
        """The observation with those before and after it in its session, in order."""
        conditions, values = self._where(MemoryFilter(session_id=hit.observation.session_id))
        head = f"SELECT {_COLUMNS} FROM memory_observations o WHERE {conditions}"

        def work(connection: Connection) -> list[Any]:
            earlier = connection.execute(
                f"{head} AND o.seq <= ? ORDER BY o.seq DESC LIMIT ?",
                (*values, hit.seq, before + 1),
            ).fetchall()
            later = connection.execute(
                f"{head} AND o.seq > ? ORDER BY o.seq LIMIT ?", (*values, hit.seq, after)
            ).fetchall()
            return [*reversed(earlier), *later]

        return [self._hit(row) for row in await self._database.read(work)]

    async def get(self, observation_id: str) -> Observation | None:
        """One observation."""
        conditions, values = self._where(NO_FILTER)
        statement = f"SELECT {_COLUMNS} FROM memory_observations o WHERE {conditions} AND o.id = ?"
        given = (*values, observation_id)
        row = await self._database.read(lambda c: c.execute(statement, given).fetchone())
        return None if row is None else self._hit(row).observation

    async def delete_session(self, session_id: str) -> int:
        """Delete the observations of a session; how many."""
        conditions, values = self._where(MemoryFilter(session_id=session_id))
        return await self._delete(conditions, values)

    async def delete_before(self, moment: float) -> int:
        """Delete the observations of all owners that are older than a time; how many."""
        return await self._delete("o.at < ?", (moment,))

    async def _delete(self, conditions: str, values: Sequence[Any]) -> int:
        batch = (
            f"SELECT o.seq FROM memory_observations o WHERE {conditions} LIMIT {DELETE_BATCH_ROWS}"
        )
        statement = f"DELETE FROM memory_observations WHERE seq IN ({batch})"
        deleted, last = 0, DELETE_BATCH_ROWS
        while last == DELETE_BATCH_ROWS:
            last = await self._database.write(lambda c: c.execute(statement, values).rowcount)
            deleted += last
        return deleted

    def _where(self, filter_: MemoryFilter) -> tuple[str, tuple[Any, ...]]:
        given: list[tuple[str, Any]] = [
            ("o.tenant = ?", self.tenant),
            ("o.owner = ?", self.owner),
        ]
        if filter_.agent:
            given.append(("o.agent = ?", filter_.agent))
        if filter_.session_id:
            given.append(("o.session_id = ?", filter_.session_id))
        if filter_.excluded_session:
            given.append(("o.session_id <> ?", filter_.excluded_session))
        if filter_.clean_only:
            given.append(("o.labelled = ?", 0))
        return " AND ".join(part for part, _ in given), tuple(value for _, value in given)

    def row(self, observation: Observation) -> tuple[Any, ...]:
        """The row of an observation of this owner."""
        rest = msgspec.json.encode(
            _ObservationExtras(observation.metadata, observation.tags, observation.label)
        )
        labelled = int(observation.label.untrusted or observation.label.private)
        texts = (
            observation.id,
            self.owner,
            observation.session_id,
            observation.agent_name,
            observation.event_type,
        )
        id_, _, session_id, *_ = stored = [*map(storable_text, texts)]
        packed = compress_by(_rest_template(id_, session_id), rest)
        return (
            self.tenant, *stored, observation.timestamp, labelled,
            self._owner_token, storable_text(observation.content), add_checksum(packed),
        )  # fmt: skip

    def _hit(self, row: Any) -> MemoryHit:
        seq, id_, session_id, agent, event_type, at, content, rest, *score = row
        packed = verify_checksum(rest, self._database.name)
        extras = _EXTRAS_DECODER.decode(decompress_by(_rest_template(id_, session_id), packed))
        observation = Observation(
            id_, session_id, agent, EventType(event_type), content, extras.metadata, extras.tags,
            at, extras.label,
        )  # fmt: skip
        return MemoryHit(seq, observation, *score)


def _rest_template(id_: str, session_id: str) -> bytes:
    """What most observations have in `rest`; never changed: see `compress_by`."""
    run_id = id_.partition(".")[0]
    return (
        f'"tags":["error"],"label":{{"untrusted":true,"private":true,"sources":["webfetch",'
        f'"memory"]}}}}{{"metadata":{{"session_id":"{session_id}","run_id":"{run_id}","tool":"bash",'
        f'"call_id":"call_1"}},"run_id":"{run_id}","model":"gpt-claude-qwen","tokens":1}},'
        f'"label":{{"sources":["memory"]}}}}'
    ).encode(errors="replace")


def query_words(text: str) -> tuple[str, ...]:
    """The words of a text to search for, each once."""
    found = (match.group().lower() for match in _WORD.finditer(text[:4_000]))
    terms = dict.fromkeys(
        word for word in found if word not in _STOP_WORDS and len(word) <= MAX_WORD_CHARS
    )
    return tuple(terms)[:MAX_QUERY_WORDS]


def storable_text(text: str) -> str:
    """The text without what a database cannot store: NUL and lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
