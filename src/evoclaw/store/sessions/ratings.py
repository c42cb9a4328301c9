"""What users said of the runs of a service: good or bad, and why."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.store.databases.database import Database, Schema, open_blob, rows_of_ids, seal_blob

SCHEMA = Schema(
    "rating store",
    (
        (
            """CREATE TABLE run_ratings (
                tenant TEXT NOT NULL,
                run_id TEXT NOT NULL,
                session_id TEXT NOT NULL,
                rating BLOB NOT NULL,
                PRIMARY KEY (tenant, run_id)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX run_ratings_of ON run_ratings (tenant, session_id)",
        ),
    ),
    checksummed=(("run_ratings", ("rating",)),),
    sealed=True,
)
PUT_RATING = """
INSERT INTO run_ratings (tenant, run_id, session_id, rating) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, run_id) DO UPDATE SET rating = excluded.rating
"""
GET_RATING = "SELECT rating FROM run_ratings WHERE tenant = ? AND run_id = ?"
GET_RATINGS = "SELECT run_id, rating FROM run_ratings WHERE tenant = ? AND run_id IN ({ids})"
FORGET_SESSION = "DELETE FROM run_ratings WHERE tenant = ? AND session_id = ?"


class RatingStore:
    """The ratings of users, one for each run; the last one counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, tenant: str, session_id: str, run_id: str, rating: bytes) -> None:
        """Store the rating of a run; it replaces an earlier one."""
        values = (tenant, run_id, session_id, seal_blob(self._database, rating))
        await self._database.write(lambda c: c.execute(PUT_RATING, values))

    async def get(self, tenant: str, run_id: str) -> bytes | None:
        """The rating of a run; None if there is none."""
        row = await self._database.read(
            lambda c: c.execute(GET_RATING, (tenant, run_id)).fetchone()
        )
        return None if row is None else open_blob(self._database, row[0])

    async def of_runs(self, tenant: str, run_ids: Sequence[str]) -> dict[str, bytes]:
        """The ratings of those of the runs that have one."""
        rows = await rows_of_ids(self._database, GET_RATINGS, (tenant,), run_ids)
        return {run_id: open_blob(self._database, rating) for run_id, rating in rows}

    async def forget(self, tenant: str, session_id: str) -> None:
        """Delete the ratings of the runs of a session."""
        await self._database.write(lambda c: c.execute(FORGET_SESSION, (tenant, session_id)))
