"""Consistency checks over the history of several orchestrators under faults.

Pure functions over plain values: each returns one sentence per violated guarantee, so that tests
can write down a broken history and check that it is found. `bench.scale.collect` collects the
values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

RAN = frozenset({"ok", "execution_failed"})
"""Outcomes that say that the call ran."""
MAY_HAVE_RUN = frozenset({"unknown", "timeout", "cancelled"})
"""Outcomes that leave open whether the call ran; every other outcome says that it did not."""
ERROR_STOPS = frozenset({"error", ""})
"""Stop reasons of a run that only a fault can cause."""
FENCING_GRACE_S = 10.0
"""Seconds after an outage in which an orchestrator may not know yet that its runs were taken over.
Until its first write is rejected it may send one more model request; it can store nothing."""


@dataclass(frozen=True)
class RequestedRun:
    """A run as a client requested it."""

    key: str
    session: str
    number: int
    """Its position in the session, from 0."""
    user: str = ""
    runs: frozenset[str] = frozenset()
    """The run ids returned for its key; empty if the request was never acknowledged."""
    asked_at: float = 0.0
    acknowledged_at: float = 0.0


@dataclass(frozen=True)
class RecordSummary:
    """The fields of a record that the checks need."""

    seq: int
    at: float
    kind: str
    turn: int = 0


@dataclass(frozen=True)
class StartedCall:
    """A call that was started, and its outcome in the run's records."""

    mark: str
    """The mark that it writes on its edge: `KEY.TURN.NUMBER`."""
    outcome: str = ""
    """`ok`, the error kind, or empty if it has not ended."""
    edge: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True)
class StoredRunSummary:
    """A run as it is stored."""

    run: str
    key: str
    state: str
    stop: str
    records: tuple[RecordSummary, ...] = ()
    calls: tuple[StartedCall, ...] = ()
    denied: int = 0
    """Calls that were denied before they started."""
    reason: str = ""
    """Why it ended, as text."""
    session: str = ""


@dataclass(frozen=True)
class WatchedRun:
    """The sequence numbers that one watcher received, from any orchestrators, in order."""

    run: str
    seen: tuple[int, ...]
    ended: bool = True
    """Whether it watched to the end; otherwise later records are not missing."""


@dataclass(frozen=True)
class Mark:
    """A mark that a call wrote on an edge, in the order of the file."""

    edge: str
    mark: str
    at: float = 0.0


@dataclass(frozen=True)
class ModelRequest:
    """A request to the model."""

    at: float
    orchestrator: str
    key: str
    turn: int


@dataclass(frozen=True)
class Outage:
    """A period in which an orchestrator, or the store, was unreachable."""

    name: str
    since: float
    until: float
    kind: str = ""


@dataclass(frozen=True)
class BudgetLimits:
    """The budgets in force."""

    calls_of_run: int
    turns_of_run: int
    calls_of_user: int


@dataclass
class History:
    """All observations of a fault run."""

    requested: Sequence[RequestedRun] = ()
    stored: Sequence[StoredRunSummary] = ()
    watched: Sequence[WatchedRun] = ()
    marks: Sequence[Mark] = ()
    model_requests: Sequence[ModelRequest] = ()
    outages: Sequence[Outage] = ()
    uncollected: Sequence[str] = ()
    """Calls that ended on an edge and whose result was never acknowledged."""
    limits: BudgetLimits = field(default_factory=lambda: BudgetLimits(1 << 30, 1 << 30, 1 << 30))


@dataclass
class Findings:
    """The violated guarantees; each list has one sentence per violation."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    overspent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Reported as not run, but ran."""

    def counts(self) -> dict[str, int]:
        """The number of violations of each kind."""
        return {name: len(found) for name, found in vars(self).items()}

    def lines(self, limit: int = 8) -> list[str]:
        """A few violations of each kind, to print."""
        return [f"  {name}: {line}" for name, found in vars(self).items() for line in found[:limit]]


def check_history(history: History) -> Findings:
    """Run all checks."""
    marks = Counter(mark.mark for mark in history.marks)
    return Findings(
        lost=[
            *unfinished_runs(history.requested, history.stored),
            *missed_records(history.stored, history.watched),
            *calls_without_effect(history.stored, marks),
            *(f"{call} ended on its edge and was not acknowledged" for call in history.uncollected),
        ],
        duplicated=[
            *duplicate_runs(history.requested, history.stored),
            *duplicate_effects(marks),
            *duplicate_records(history.stored, history.watched),
            *duplicate_model_requests(history.stored, history.model_requests, history.outages),
        ],
        out_of_order=[
            *unordered_records(history.stored, history.watched),
            *overlapping_runs(history.requested, history.stored),
            *unordered_effects(history.requested, certain_marks(history.stored, history.marks)),
        ],
        overspent=overspent(history, marks),
        wrong=denied_calls_that_ran(history.stored, marks),
    )


def key_of(mark: str) -> str:
    """The key of the run whose call wrote a mark."""
    return mark.partition(".")[0]


def turn_of(mark: str) -> int:
    """The turn of the call that wrote a mark."""
    return int(mark.split(".")[1])


def root_key_of(key: str) -> str:
    """The key of the root run, also for a sub-run."""
    return key.partition("s")[0]


def unfinished_runs(
    requested: Iterable[RequestedRun], stored: Iterable[StoredRunSummary]
) -> list[str]:
    """Accepted runs that are not stored, have not ended, or ended with an error."""
    by_id = {run.run: run for run in stored}
    found: list[str] = []
    for request in requested:
        for run in sorted(request.runs):
            stored_run = by_id.get(run)
            if stored_run is None:
                found.append(f"run {run} ({request.key}) was accepted and is not stored")
            elif stored_run.state != "ended":
                found.append(f"run {run} ({request.key}) is still {stored_run.state}")
            elif stored_run.stop in ERROR_STOPS:
                reason = f"{stored_run.stop or 'no reason'} {stored_run.reason}".strip()
                found.append(f"run {run} ({request.key}) ended with an error: {reason}")
    return found


def missed_records(stored: Iterable[StoredRunSummary], watched: Iterable[WatchedRun]) -> list[str]:
    """Stored records that a watcher did not receive although it watched to the end."""
    kinds_of = {run.run: {record.seq: record.kind for record in run.records} for run in stored}
    found: list[str] = []
    for watcher in watched:
        known = kinds_of.get(watcher.run, {})
        missed = sorted(set(known) - set(watcher.seen)) if watcher.ended else []
        if missed:
            kinds = Counter(known[seq] for seq in missed)
            found.append(f"a watcher of {watcher.run} missed {missed[:5]}: {dict(kinds)}")
    return found


def calls_without_effect(stored: Iterable[StoredRunSummary], marks: Mapping[str, int]) -> list[str]:
    """Calls that are reported as done and wrote no mark."""
    return [
        f"{call.mark} of {run.run} is reported as {call.outcome} and wrote no mark"
        for run in stored
        for call in run.calls
        if call.mark and call.outcome == "ok" and not marks.get(call.mark)
    ]


def denied_calls_that_ran(
    stored: Iterable[StoredRunSummary], marks: Mapping[str, int]
) -> list[str]:
    """Calls that are reported as not run and wrote a mark."""
    return [
        f"{call.mark} of {run.run} is reported as {call.outcome} and wrote a mark"
        for run in stored
        for call in run.calls
        if marks.get(call.mark) and call.outcome and call.outcome not in RAN | MAY_HAVE_RUN
    ]


def duplicate_runs(
    requested: Iterable[RequestedRun], stored: Iterable[StoredRunSummary]
) -> list[str]:
    """Keys with more than one run, acknowledged or stored."""
    by_key: dict[str, set[str]] = defaultdict(set)
    for run in stored:
        by_key[run.key].add(run.run)
    for request in requested:
        by_key[request.key] |= request.runs
    return [
        f"{key} started {sorted(runs)}" for key, runs in by_key.items() if key and len(runs) > 1
    ]


def duplicate_effects(marks: Mapping[str, int]) -> list[str]:
    """Effects that happened more than once."""
    return [f"{mark} happened {count} times" for mark, count in marks.items() if count > 1]


def duplicate_records(
    stored: Iterable[StoredRunSummary], watched: Iterable[WatchedRun]
) -> list[str]:
    """Records that are stored, or were sent to one watcher, more than once."""
    rows = [(run.run, [record.seq for record in run.records], "the store") for run in stored]
    rows += [(watcher.run, list(watcher.seen), "a watcher") for watcher in watched]
    found: list[str] = []
    for run, numbers, source in rows:
        repeated = [seq for seq, count in Counter(numbers).items() if count > 1]
        if repeated:
            found.append(f"{source} has {repeated[:5]} of {run} more than once")
    return found


def duplicate_model_requests(
    stored: Iterable[StoredRunSummary],
    model_requests: Iterable[ModelRequest],
    outages: Sequence[Outage],
) -> list[str]:
    """Stored replies that an orchestrator without an outage requested again."""
    replied: dict[tuple[str, int], float] = {}
    for run in stored:
        for record in run.records:
            if record.kind == "replied":
                replied.setdefault((run.key, record.turn), record.at)
    found: list[str] = []
    for request in model_requests:
        at = replied.get((request.key, request.turn))
        # A reply is stored a moment after its timestamp.
        if at is not None and request.at > at + 1.0 and not _in_outage(request, outages):
            found.append(
                f"turn {request.turn} of {request.key} by {request.orchestrator},"
                f" {request.at - at:.1f} s after its reply"
            )
    return found


def _in_outage(request: ModelRequest, outages: Sequence[Outage]) -> bool:
    return any(
        outage.name == request.orchestrator
        and outage.since <= request.at <= outage.until + FENCING_GRACE_S
        for outage in outages
    )


def unordered_records(
    stored: Iterable[StoredRunSummary], watched: Iterable[WatchedRun]
) -> list[str]:
    """Records that were sent, or are stored, in another order than they happened."""
    found = [
        f"a watcher of {watcher.run} saw {back}"
        for watcher in watched
        if (back := _steps_back(watcher.seen))
    ]
    for run in stored:
        turns = [record.turn for record in run.records if record.kind == "turn_started"]
        if turns != sorted(turns):
            found.append(f"the turns of {run.run} are {turns}")
        kinds = [record.kind for record in run.records]
        if "run_finished" in kinds[:-1] and run.state == "ended" and run.stop != "waiting":
            found.append(f"{run.run} continues after its end: {kinds[-3:]}")
    return found


def _steps_back(seen: Sequence[int]) -> str:
    steps = [f"{a} before {b}" for a, b in pairwise(seen) if b < a]
    return ", ".join(steps[:3])


def overlapping_runs(
    requested: Iterable[RequestedRun], stored: Iterable[StoredRunSummary]
) -> list[str]:
    """Runs that started before the previous run of their session had ended."""
    spans = {
        run.run: (run.records[0].at, run.records[-1].at)
        for run in stored
        if run.records and run.run
    }
    sessions: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for request in requested:
        sessions[request.session] += [(request.number, run) for run in request.runs if run in spans]
    found: list[str] = []
    for session, runs in sessions.items():
        for (_, before), (_, after) in pairwise(sorted(runs)):
            if spans[after][0] < spans[before][1]:
                early = spans[before][1] - spans[after][0]
                found.append(f"{after} of {session} started {early:.3f} s before {before} ended")
    return found


def certain_marks(stored: Iterable[StoredRunSummary], marks: Iterable[Mark]) -> list[Mark]:
    """Marks without those of calls with an unknown outcome, which may run at any time.

    The run continued without these calls, so their order is not defined.
    """
    uncertain = {call.mark for run in stored for call in run.calls if call.outcome in MAY_HAVE_RUN}
    return [mark for mark in marks if mark.mark not in uncertain]


def unordered_effects(requested: Iterable[RequestedRun], marks: Sequence[Mark]) -> list[str]:
    """Effects of one session that happened in another order than they were requested."""
    position = {request.key: (request.session, request.number) for request in requested}
    found: list[str] = []
    last: dict[tuple[str, str], tuple[int, int, str]] = {}
    latest: dict[str, tuple[int, int, str]] = {}
    for mark in marks:
        session, number = position.get(key_of(mark.mark), ("", 0))
        if session:
            now = number, turn_of(mark.mark), mark.mark
            before = last.get((mark.edge, session), now)
            if now[:2] < before[:2]:
                found.append(f"{mark.mark} came after {before[2]} on {mark.edge}")
            last[mark.edge, session] = max(now, before)
    for mark in sorted(marks, key=lambda mark: mark.at):
        session, number = position.get(key_of(mark.mark), ("", 0))
        if session and mark.at:
            now = number, turn_of(mark.mark), mark.mark
            before = latest.get(session, now)
            if now[:2] < before[:2]:
                found.append(f"{mark.mark} on {mark.edge} came after {before[2]}")
            latest[session] = max(now, before)
    return found


def overspent(history: History, marks: Mapping[str, int]) -> list[str]:
    """Budgets of runs and of users that were exceeded by calls and replies that happened."""
    limits, found = history.limits, list[str]()
    user_of = {request.key: request.user for request in history.requested}
    runs, users = Counter[str](), Counter[str]()
    for mark, count in marks.items():
        root = root_key_of(key_of(mark))
        runs[root] += count
        users[user_of.get(root, "")] += count
    turns = Counter[str]()
    for run in history.stored:
        turns[root_key_of(run.key)] += sum(record.kind == "replied" for record in run.records)
    for name, spent, limit in (
        ("calls of run", runs, limits.calls_of_run),
        ("calls of user", users, limits.calls_of_user),
        ("turns of run", turns, limits.turns_of_run),
    ):
        found += [f"{name} {key}: {n} of {limit}" for key, n in spent.items() if key and n > limit]
    return found


@dataclass(frozen=True)
class Takeover:
    """A run whose orchestrator had an outage, and the seconds until another one resumed it."""

    run: str
    orchestrator: str
    kind: str
    at: float
    seconds: float


def takeovers(
    stored: Iterable[StoredRunSummary],
    model_requests: Iterable[ModelRequest],
    outages: Iterable[Outage],
    store_outages: Sequence[Outage],
) -> list[Takeover]:
    """How long each run was suspended whose orchestrator was killed or paused.

    An outage does not count if the store was unreachable at the same time (`store_outages`): then
    no orchestrator can take over a run.
    """
    by_key: dict[str, list[ModelRequest]] = defaultdict(list)
    for request in sorted(model_requests, key=lambda request: request.at):
        by_key[request.key].append(request)
    runs = [run for run in stored if run.records and run.key in by_key]
    found: list[Takeover] = []
    for outage in outages:
        if outage.kind not in ("kill", "stop"):
            continue
        for run in runs:
            if not _was_driving(outage, run, by_key[run.key]):
                continue
            after = next((record.at for record in run.records if record.at > outage.since), None)
            end = outage.until if after is None else after
            if not any(
                b.since < end and b.until + FENCING_GRACE_S > outage.since for b in store_outages
            ):
                found.append(
                    Takeover(run.run, outage.name, outage.kind, outage.since, end - outage.since)
                )
    return found


def _was_driving(outage: Outage, run: StoredRunSummary, requests: Sequence[ModelRequest]) -> bool:
    """Whether the orchestrator with the outage drove a run: it had requested the last reply."""
    before = [request for request in requests if request.at <= outage.since]
    if not before or before[-1].orchestrator != outage.name:
        return False
    if not run.records[0].at <= outage.since < run.records[-1].at:
        return False
    return not any(
        record.kind == "run_resumed" and before[-1].at < record.at <= outage.since
        for record in run.records
    )
