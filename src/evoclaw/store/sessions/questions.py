"""Questions to people in sessions, and their answers; a part of the session store."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.store.databases.database import Connection, Database, Work, open_blob, seal_blob
from evoclaw.store.databases.notices import Notice, NoticeKind, run_id_of
from evoclaw.store.databases.steps import Step
from evoclaw.store.sessions.question_steps import ANSWER_QUESTION, ASK_QUESTION

QUESTION_TABLES = (
    """CREATE TABLE questions (
        seq INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        question BLOB NOT NULL,
        answer BLOB,
        asked_at REAL NOT NULL,
        answered_at REAL,
        closed_at REAL,
        UNIQUE (tenant, id)
    ) STRICT""",
    "CREATE INDEX questions_open ON questions (tenant, session_id, seq) "
    "WHERE answer IS NULL AND closed_at IS NULL",
)
"""The table of questions, a part of the schema of the session store."""


class StoredQuestion(Struct, frozen=True):
    """A question to a person, and its answer if there is one."""

    id: str
    session_id: str
    question: bytes
    answer: bytes | None
    asked_at: float


class QuestionStore:
    """The questions of a tenant, by call: each is asked once, and its first answer counts."""

    def __init__(
        self, database: Database, clock: Callable[[], float], tenant: str = LOCAL_PRINCIPAL.tenant
    ) -> None:
        self._database, self._clock = database, clock
        self.tenant = tenant

    def of(self, tenant: str) -> QuestionStore:
        """The questions of another tenant."""
        return QuestionStore(self._database, self._clock, tenant)

    async def ask(self, question_id: str, session_id: str, question: bytes) -> StoredQuestion:
        """Store a question; an existing one with that id is returned unchanged."""
        now, sealed = self._clock(), seal_blob(self._database, question)
        step = Step(ASK_QUESTION, (self.tenant, question_id, session_id, sealed, now))
        if not await self._database.apply(step):
            found = await self.get(question_id)
            if found is not None:
                return found
        return StoredQuestion(question_id, session_id, question, None, now)

    async def answer(self, question_id: str, answer: bytes) -> bool:
        """Store an answer; False if the question is unknown, answered, or closed."""
        sealed = seal_blob(self._database, answer)
        step = Step(ANSWER_QUESTION, (self.tenant, question_id, sealed, self._clock()))
        notices = (Notice(NoticeKind.ANSWERED, self.tenant, run_id_of(question_id)),)
        return await self._database.apply(step, notices=notices)

    async def close_waiting(self, run_id: str) -> None:
        """Close the waiting questions of a run that has ended."""
        await self._database.write(self.close_work(run_id))

    def close_work(self, run_id: str) -> Work[object]:
        """The work of `close_waiting`, to run it in a transaction with other work."""
        statement = (
            "UPDATE questions SET closed_at = ? "
            "WHERE tenant = ? AND id >= ? AND id < ? AND answer IS NULL AND closed_at IS NULL"
        )
        # '/' comes right after '.'
        values = (self._clock(), self.tenant, f"{run_id}.", f"{run_id}/")
        return lambda connection: connection.execute(statement, values)

    async def get(self, question_id: str) -> StoredQuestion | None:
        """A question."""
        found = await self._database.read(lambda c: self._questions(c, "AND id = ?", question_id))
        return found[0] if found else None

    async def waiting(self, session_id: str = "") -> list[StoredQuestion]:
        """The unanswered questions of one session or of all, oldest first."""
        condition = (
            "AND answer IS NULL AND closed_at IS NULL AND (?2 = '' OR session_id = ?2) ORDER BY seq"
        )
        return await self._database.read(lambda c: self._questions(c, condition, session_id))

    def _questions(
        self, connection: Connection, condition: str, value: str
    ) -> list[StoredQuestion]:
        statement = (
            "SELECT id, session_id, question, answer, asked_at FROM questions "
            f"WHERE tenant = ?1 {condition}"
        )
        rows = connection.execute(statement, (self.tenant, value))
        return [
            StoredQuestion(
                id_,
                session,
                open_blob(self._database, question),
                None if answer is None else open_blob(self._database, answer),
                asked_at,
            )
            for id_, session, question, answer, asked_at in rows
        ]
