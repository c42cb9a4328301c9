"""Reads the rows that the drivers left, and says what went wrong."""

from __future__ import annotations

from typing import Any

import psycopg

# A run is lost if it never ended, or ended without all its steps; those cancelled may.
LOST = """
SELECT count(*) FROM bench.runs r
WHERE NOT EXISTS (SELECT 1 FROM bench.notes n WHERE n.kind = 'asked' AND n.run = r.id)
AND (NOT ended OR (SELECT count(DISTINCT step) FROM bench.steps s WHERE s.run = r.id) < 5)
"""
DOUBLED = """
SELECT count(*) FROM (
    SELECT 1 FROM bench.steps GROUP BY run, step, epoch HAVING count(*) > 1) d
"""
REPEATED = """
SELECT count(*) FROM (SELECT 1 FROM bench.steps GROUP BY run, step HAVING count(*) > 1) d
"""
# A run began before an earlier one of its session had done its last step.
ORDER = """
WITH spans AS (
    SELECT r.session, r.number, min(s.seq) AS first, max(s.seq) AS last
    FROM bench.steps s JOIN bench.runs r ON r.id = s.run GROUP BY r.session, r.number)
SELECT count(*) FROM spans a JOIN spans b
ON a.session = b.session AND a.number < b.number AND b.first < a.last
"""
LATE = """
SELECT count(*) FROM bench.steps s WHERE EXISTS (
    SELECT 1 FROM bench.claims c WHERE c.run = s.run AND c.epoch > s.epoch AND c.seq < s.seq)
"""
TAKEN = "SELECT count(*) FROM (SELECT 1 FROM bench.claims GROUP BY run HAVING count(*) > 1) t"
NOTES = "SELECT kind, count(*) FROM bench.notes GROUP BY kind"
# The runs that a driver had begun, and not ended, and when somebody else went on.
AFTER = """
SELECT extract(epoch FROM min(n.at) - %(at)s)::float
FROM (SELECT run, max(at) AS at FROM bench.steps
      WHERE driver = %(driver)s AND at <= %(at)s GROUP BY run) v
LEFT JOIN bench.steps n ON n.run = v.run AND n.driver <> %(driver)s AND n.at > %(at)s
GROUP BY v.run HAVING min(n.at) IS NOT NULL ORDER BY 1
"""
ABORTS = """
SELECT a.run, extract(epoch FROM min(b.at) - min(a.at))::float
FROM bench.notes a LEFT JOIN bench.notes b ON b.run = a.run AND b.kind = 'aborted'
WHERE a.kind = 'asked' GROUP BY a.run ORDER BY a.run
"""
# The next run of the session had begun when the driver of a cancelled one let go of it.
OVERLAPPED = """
SELECT count(DISTINCT n.run) FROM bench.notes n JOIN bench.runs r ON r.id = n.run
JOIN bench.runs o ON o.session = r.session AND o.number = r.number + 1
JOIN bench.steps s ON s.run = o.id AND s.at < n.at WHERE n.kind = 'aborted'
"""


def judged(url: str) -> dict[str, Any]:
    """Counts of everything that must be 0, and of some that need not."""
    with psycopg.connect(url) as connection:

        def count(statement: Any) -> int:
            row = connection.execute(statement).fetchone()
            return row[0] if row else 0

        notes = dict(connection.execute(NOTES).fetchall())
        return {
            "lost": count(LOST),
            "doubled": count(DOUBLED),
            "out_of_order": count(ORDER),
            "late_accepted": count(LATE),
            "overlapped": count(OVERLAPPED),
            "repeated": count(REPEATED),
            "taken_over": count(TAKEN),
            "highest_epoch": count("SELECT max(epoch) FROM bench.claims"),
            "fenced": notes.get("fenced", 0),
            "restarted": notes.get("restarted", 0),
        }


def takeovers(url: str, driver: str, at: Any) -> list[float]:
    """Seconds from a driver's death until somebody went on with each run it had."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(AFTER, {"driver": driver, "at": at})
        return [round(row[0], 2) for row in rows]


def aborts(url: str) -> dict[str, float | None]:
    """Seconds from asking for the end of a run until its driver ended it."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(ABORTS).fetchall()
        return {run: None if took is None else round(took, 3) for run, took in rows}
