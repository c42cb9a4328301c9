"""The history of a fault run as appends to lists and reads of them: Elle's list-append form.

Foreign checkers know this form. Two kinds of lists have guarantees that clients can observe:

- a session: starting a run appends it; at the end its runs are read in the order in which they ran;
- an edge: a call appends its mark; at the end the file of marks is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from bench.scale.consistency import MAY_HAVE_RUN, History, root_key_of

UNCERTAIN = MAY_HAVE_RUN | {"execution_failed", ""}
"""Outcomes of a call that may have written its mark, and may have not."""
DURATION_S = 1.0
"""Seconds between the start and the end of the final reads."""


@dataclass(frozen=True)
class ListOperation:
    """An append to a list, or a read of the whole list."""

    list: str
    started: float
    ended: float | None
    """None if it is unknown whether it happened."""
    appended: str = ""
    read: tuple[str, ...] | None = None
    """The elements that a read found; None for an append."""


def list_operations(history: History) -> list[ListOperation]:
    """All appends, and one read of each list after all of them."""
    appends = [*session_appends(history), *edge_appends(history)]
    end = max((time for op in appends for time in (op.started, op.ended or 0.0)), default=0.0)
    found = {**session_contents(history), **edge_contents(history)}
    names = sorted({op.list for op in appends} | set(found))
    reads = [
        ListOperation(name, end + DURATION_S, end + 2 * DURATION_S, read=tuple(found.get(name, ())))
        for name in names
    ]
    return [*appends, *reads]


def session_appends(history: History) -> Iterator[ListOperation]:
    """The runs that clients started; a request without an answer may have started one."""
    session_of = {run.key: run.session for run in history.stored}
    for request in history.requested:
        session = request.session or session_of.get(request.key, "")
        if session:
            ended = request.acknowledged_at if request.runs else None
            yield ListOperation(f"session {session}", request.asked_at, ended, request.key)


def session_contents(history: History) -> dict[str, list[str]]:
    """The runs of each session, in the order in which they ran, without sub-runs."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for run in history.stored:
        if run.records and run.key and root_key_of(run.key) == run.key:
            found[f"session {run.session}"].append((run.records[0].at, run.key))
    return {session: [key for _, key in sorted(runs)] for session, runs in found.items()}


def edge_appends(history: History) -> Iterator[ListOperation]:
    """The calls that were started; not those that are reported as not run."""
    for run in history.stored:
        for call in run.calls:
            if call.outcome == "ok" or call.outcome in UNCERTAIN:
                ended = call.ended_at if call.outcome == "ok" else None
                yield ListOperation(f"edge {call.edge}", call.started_at, ended, call.mark)


def edge_contents(history: History) -> dict[str, list[str]]:
    """The marks on each edge, in the order of the file."""
    found: dict[str, list[str]] = defaultdict(list)
    for mark in history.marks:
        found[f"edge {mark.edge}"].append(mark.mark)
    return found


def elle_lines(operations: Sequence[ListOperation]) -> Iterator[str]:
    """The operations as EDN for `elle-cli --model list-append`, one line for each event."""
    lists = _numbers(operation.list for operation in operations)
    elements = _numbers(
        element
        for operation in operations
        for element in (operation.appended, *(operation.read or ()))
    )
    events: list[tuple[float, int, int, str]] = []
    for process, operation in enumerate(operations):
        key = lists[operation.list]
        if operation.read is None:
            asked = done = f"[[:append {key} {elements[operation.appended]}]]"
        else:
            read = " ".join(str(elements[element]) for element in operation.read)
            asked, done = f"[[:r {key} nil]]", f"[[:r {key} [{read}]]]"
        name = f":list {_text(operation.list)}, :element {_text(operation.appended)}"
        events.append((operation.started, 0, process, f":type :invoke, :value {asked}, {name}"))
        # An operation without a known outcome ends after everything else, if ever.
        ended = float("inf") if operation.ended is None else operation.ended
        outcome = "info" if operation.ended is None else "ok"
        events.append((ended, 1, process, f":type :{outcome}, :value {done}, {name}"))
    latest = max((at for at, *_ in events if at != float("inf")), default=0.0)
    for index, (at, _, process, text) in enumerate(sorted(events)):
        nanoseconds = int(1e9 * min(at, latest))
        yield f"{{:index {index}, :process {process}, :time {nanoseconds}, :f :txn, {text}}}"


def _numbers(names: Iterable[str]) -> dict[str, int]:
    numbers = count(1)
    return {name: next(numbers) for name in dict.fromkeys(names)}


def _text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
