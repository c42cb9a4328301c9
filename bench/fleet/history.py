"""What really happened, compared with what was said: journals, store, marks, and words told."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests.faults.driver import Ask, Told
from tests.faults.processes import EdgeProcess

from evoclaw.store.commands import COLUMNS
from evoclaw.store.sqlite import unsealed
from evoclaw.transport.wire import Outcome

HAPPENED = {"success", "execution_failed"}
"""Whoever says this says that it ran."""
MAYBE = {"unknown", "timeout", "cancelled"}
"""Whoever says this leaves open whether it ran, or how far; every other word says it did not."""
HARMLESS = "read"


@dataclass
class Findings:
    """What a run is judged by; each list names calls."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """For people: a few of each kind."""
        kinds = ("lost", "duplicated", "unfinished", "wrong")
        return [f"  {kind}: {one}" for kind in kinds for one in getattr(self, kind)[:10]]


@dataclass
class Journaled:
    """What an edge's journal says of a call."""

    state: str
    acked: bool
    agent: str


def examine(
    asked: Sequence[Ask], told: Sequence[Told], store: Path, edges: Sequence[EdgeProcess]
) -> Findings:
    """Compare everything with everything."""
    found = Findings()
    marks = {edge.name: _marks(edge) for edge in edges}
    journals: dict[str, list[Journaled]] = {}
    for edge in edges:
        for one, row in _journal(edge):
            journals.setdefault(one, []).append(row)
    stored = dict(_stored(store))
    words: dict[str, list[str]] = {}
    for one in told:
        words.setdefault(one.id, []).append(one.outcome)
    for call in asked:
        counted = sum(each[call.id] for each in marks.values())
        _judge(call, counted, _attempts(call, journals), stored, words.get(call.id, []), found)
    return found


def _attempts(call: Ask, journals: dict[str, list[Journaled]]) -> list[Journaled]:
    """A harmless call may have been tried a second time, under an id of its own."""
    head = call.id.rpartition(".")[0]
    return [row for attempt in (1, 2) for row in journals.get(f"{head}.{attempt}", [])]


def _judge(
    call: Ask,
    marks: int,
    journaled: list[Journaled],
    stored: dict[str, str | None],
    words: list[str],
    found: Findings,
) -> None:
    outcome = stored.get(call.id)
    found.outcomes[words[0] if words else "nothing"] += 1
    if not words or outcome is None:
        found.unfinished.append(f"{call.id}: told {words}, stored {outcome}")
    if marks > 1 or sum(row.agent == call.agent for row in journaled) > 2:
        found.duplicated.append(f"{call.id}: {marks} marks")
    if any(row.acked for row in journaled) and call.id not in stored:
        found.lost.append(f"{call.id}: acknowledged, and not in the store")
    if any(not row.acked for row in journaled):
        states = [row.state for row in journaled]
        found.lost.append(f"{call.id}: the edge's {states} never arrived")
    if (wrong := _contradiction(call, marks, outcome, words)) is not None:
        found.wrong.append(f"{call.id}: {wrong}")


def _contradiction(call: Ask, marks: int, outcome: str | None, words: list[str]) -> str | None:
    if call.tool == HARMLESS:
        # It may be told from its second attempt, and it leaves no mark.
        return f"told {words}" if len(set(words)) > 1 else None
    said = {*words, *([outcome] if outcome else [])}
    if len(said) > 1:
        return f"told {words}, stored {outcome}"
    if said & HAPPENED and marks != 1:
        return f"{said} but {marks} marks"
    if said - HAPPENED - MAYBE and marks:
        return f"{said}, which says it did not run, but {marks} marks"
    return None


def _marks(edge: EdgeProcess) -> Counter:
    path = edge.workspace / "marks"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def _journal(edge: EdgeProcess) -> list[tuple[str, Journaled]]:
    rows = edge.rows("SELECT request_id, state, acked FROM calls")
    return [(one, Journaled(state, bool(acked), edge.name)) for one, state, acked in rows]


def _stored(path: Path) -> list[tuple[str, str | None]]:
    """Each command and how it ended, if it has."""
    place = COLUMNS.split(", ").index("outcome")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(f"SELECT {COLUMNS} FROM commands").fetchall()
    return [(row[0], _kind(row[place], row[5], path)) for row in rows]


def _kind(blob: bytes | None, state: str, path: Path) -> str | None:
    if blob is None:
        return "expired" if state == "expired" else None
    outcome = msgspec.json.decode(unsealed(blob, path), type=Outcome)
    return "success" if outcome.status == "success" else outcome.error_type
