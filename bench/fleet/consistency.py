"""What really happened, compared with what was said: journals, store, marks, and words told."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests.support.fleet_processes import EdgeProcess
from tests.support.programs.orchestrator_driver import Ask, CallOutcome

from evoclaw.store.databases.sqlite import verify_checksum
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
class Stored:
    """What the orchestrator's store says of a call."""

    outcome: str | None
    late: bool = False
    """A real result came after the command had been given up, and was noted."""


def examine(
    asked: Sequence[Ask], told: Sequence[CallOutcome], store: Path, edges: Sequence[EdgeProcess]
) -> Findings:
    """Compare everything with everything."""
    found = Findings()
    stored = _stored(store)
    marks = [_marks(edge) for edge in edges]
    words: dict[str, list[str]] = {}
    for one in told:
        words.setdefault(one.id, []).append(one.outcome)
    for edge in edges:
        for one, state, acked in edge.rows("SELECT request_id, state, acked FROM calls"):
            _see_arrived(one, state, bool(acked), stored.get(one), found)
    for call in asked:
        row = stored.get(call.id, Stored(None))
        counted = sum(each[call.id] for each in marks)
        _judge(call, counted, row.outcome, words.get(call.id, []), found)
    return found


def _see_arrived(one: str, state: str, acked: bool, row: Stored | None, found: Findings) -> None:
    """What an edge knows must be known to the orchestrator, and what was acknowledged kept."""
    if not acked:
        found.lost.append(f"{one}: {state} on the edge, and nobody was told")
    elif row is None:
        found.lost.append(f"{one}: {state} was acknowledged, and is not in the store")
    elif state == "succeeded" and row.outcome == "unknown" and not row.late:
        found.lost.append(f"{one}: {state} was acknowledged, and is stored as unknown")


def _judge(call: Ask, marks: int, outcome: str | None, words: list[str], found: Findings) -> None:
    found.outcomes[words[0] if words else "nothing"] += 1
    if not words or outcome is None:
        found.unfinished.append(f"{call.id}: told {words}, stored {outcome}")
    if marks > 1:
        found.duplicated.append(f"{call.id}: {marks} marks")
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


def _stored(path: Path) -> dict[str, Stored]:
    """Each command and how it ended, if it has."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT request_id, outcome, state FROM commands").fetchall()
        notes = connection.execute("SELECT request_id, outcome FROM notes").fetchall()
    found = {one: Stored(_kind(blob, state, path)) for one, blob, state in rows}
    for one, blob in notes:
        found[one].late |= _kind(blob, "", path) == "success"
    return found


def _kind(blob: bytes | None, state: str, path: Path) -> str | None:
    if blob is None:
        return "expired" if state == "expired" else None
    outcome = msgspec.json.decode(verify_checksum(blob, path), type=Outcome)
    return "success" if outcome.status == "success" else outcome.error_type
