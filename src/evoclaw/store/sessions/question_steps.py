"""The steps that store a question to a person, and its answer."""

from __future__ import annotations

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure


def _ask(
    connection: Connection,
    tenant: str,
    question_id: str,
    session_id: str,
    question: bytes,
    now: float,
) -> bool:
    """Whether the question is new."""
    put = (
        "INSERT INTO questions (tenant, id, session_id, question, asked_at) "
        "VALUES (?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO NOTHING"
    )
    return connection.execute(put, (tenant, question_id, session_id, question, now)).rowcount > 0


ASK_QUESTION = Procedure(
    name="ask_question",
    sqlite=_ask,
    postgres="""
BEGIN
    INSERT INTO questions (tenant, id, session_id, question, asked_at)
    VALUES (a->>0, a->>1, a->>2, decode(a->>3, 'base64'), (a->>4)::float8)
    ON CONFLICT (tenant, id) DO NOTHING;
    RETURN to_jsonb(FOUND);
END
""",
)


def _answer(
    connection: Connection, tenant: str, question_id: str, answer: bytes, now: float
) -> bool:
    """Whether the question waited for this answer."""
    put = (
        "UPDATE questions SET answer = ?, answered_at = ? "
        "WHERE tenant = ? AND id = ? AND answer IS NULL AND closed_at IS NULL"
    )
    return connection.execute(put, (answer, now, tenant, question_id)).rowcount > 0


ANSWER_QUESTION = Procedure(
    name="answer_question",
    sqlite=_answer,
    postgres="""
BEGIN
    UPDATE questions SET answer = decode(a->>2, 'base64'), answered_at = (a->>3)::float8
    WHERE tenant = a->>0 AND id = a->>1 AND answer IS NULL AND closed_at IS NULL;
    RETURN to_jsonb(FOUND);
END
""",
)
