"""Consistency checks of a fault run: journals, store, marks and reported outcomes must agree."""

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

RAN = {"success", "execution_failed"}
"""Outcomes that say that the call ran."""
MAY_HAVE_RUN = {"unknown", "timeout", "cancelled"}
"""Outcomes that leave open whether the call ran; every other outcome says that it did not."""
READ_ONLY_TOOL = "read"


@dataclass
class Findings:
    """The violated guarantees; each list names calls."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """A few violations of each kind, to print."""
        kinds = ("lost", "duplicated", "unfinished", "wrong")
        return [f"  {kind}: {line}" for kind in kinds for line in getattr(self, kind)[:10]]


@dataclass
class StoredCommand:
    """The outcome of a call in the orchestrator's store."""

    outcome: str | None
    late: bool = False
    """Whether a result was stored as a note after the command had been given up."""


def check_calls(
    requested: Sequence[Ask],
    reported: Sequence[CallOutcome],
    store: Path,
    edges: Sequence[EdgeProcess],
) -> Findings:
    """Run all checks."""
    found = Findings()
    stored = _stored(store)
    marks = [_marks(edge) for edge in edges]
    outcomes: dict[str, list[str]] = {}
    for call in reported:
        outcomes.setdefault(call.id, []).append(call.outcome)
    for edge in edges:
        for call_id, state, acked in edge.rows("SELECT request_id, state, acked FROM calls"):
            _check_journaled(call_id, state, bool(acked), stored.get(call_id), found)
    for call in requested:
        row = stored.get(call.id, StoredCommand(None))
        mark_count = sum(edge_marks[call.id] for edge_marks in marks)
        _check_call(call, mark_count, row.outcome, outcomes.get(call.id, []), found)
    return found


def _check_journaled(
    call_id: str, state: str, acked: bool, row: StoredCommand | None, found: Findings
) -> None:
    """A call in an edge's journal must be acknowledged and stored by the orchestrator."""
    if not acked:
        found.lost.append(f"{call_id}: {state} on the edge and not acknowledged")
    elif row is None:
        found.lost.append(f"{call_id}: {state} was acknowledged and is not in the store")
    elif state == "succeeded" and row.outcome == "unknown" and not row.late:
        found.lost.append(f"{call_id}: {state} was acknowledged and is stored as unknown")


def _check_call(
    call: Ask, marks: int, stored: str | None, reported: list[str], found: Findings
) -> None:
    found.outcomes[reported[0] if reported else "nothing"] += 1
    if not reported or stored is None:
        found.unfinished.append(f"{call.id}: reported {reported}, stored {stored}")
    if marks > 1:
        found.duplicated.append(f"{call.id}: {marks} marks")
    if (wrong := _contradiction(call, marks, stored, reported)) is not None:
        found.wrong.append(f"{call.id}: {wrong}")


def _contradiction(call: Ask, marks: int, stored: str | None, reported: list[str]) -> str | None:
    if call.tool == READ_ONLY_TOOL:
        # Its second attempt may be the reported one, and it writes no mark.
        return f"reported {reported}" if len(set(reported)) > 1 else None
    outcomes = {*reported, *([stored] if stored else [])}
    if len(outcomes) > 1:
        return f"reported {reported}, stored {stored}"
    if outcomes & RAN and marks != 1:
        return f"{outcomes} but {marks} marks"
    if outcomes - RAN - MAY_HAVE_RUN and marks:
        return f"{outcomes}, which says that it did not run, but {marks} marks"
    return None


def _marks(edge: EdgeProcess) -> Counter:
    path = edge.workspace / "marks"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def _stored(path: Path) -> dict[str, StoredCommand]:
    """Each command and its outcome, if it has one."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT request_id, outcome, state FROM commands").fetchall()
        notes = connection.execute("SELECT request_id, outcome FROM notes").fetchall()
    found = {call_id: StoredCommand(_kind(blob, state, path)) for call_id, blob, state in rows}
    for call_id, blob in notes:
        found[call_id].late |= _kind(blob, "", path) == "success"
    return found


def _kind(blob: bytes | None, state: str, path: Path) -> str | None:
    if blob is None:
        return "expired" if state == "expired" else None
    outcome = msgspec.json.decode(verify_checksum(blob, path), type=Outcome)
    return "success" if outcome.status == "success" else outcome.error_type
