"""What happened in several orchestrators at once, compared with what was promised.

Pure functions over plain values. Each gives a sentence for every promise that was broken, so that
a broken history can be written down in a test, and found. `bench.scale.collect` fills in the values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

HAPPENED = frozenset({"ok", "execution_failed"})
"""Whoever says this says that it ran."""
MAYBE = frozenset({"unknown", "timeout", "cancelled"})
"""Whoever says this leaves open whether it ran; every other word says that it did not."""
FAULTY = frozenset({"error", ""})
"""Ends of a run that nobody asked for."""
DROWSY = 10.0
"""Seconds after it was woken, or let in again, that an orchestrator may not know yet who took its
runs over. Until its first write is refused it may ask a model once more; it can store nothing."""


@dataclass(frozen=True)
class Asked:
    """A run as a client wanted it."""

    key: str
    session: str
    number: int
    """Which one of its session, from 0 on."""
    user: str = ""
    runs: frozenset[str] = frozenset()
    """The ids that were answered for its key; none if nobody ever said that it was accepted."""


@dataclass(frozen=True)
class Told:
    """A record, as far as it is looked at."""

    seq: int
    at: float
    kind: str
    turn: int = 0


@dataclass(frozen=True)
class Called:
    """A call that was begun, and how it ended by the run's records."""

    mark: str
    """What it leaves behind: `KEY.TURN.NUMBER`."""
    outcome: str = ""
    """`ok`, the kind of its error, or nothing if it has not ended."""


@dataclass(frozen=True)
class Stored:
    """A run as the store has it."""

    run: str
    key: str
    state: str
    stop: str
    told: tuple[Told, ...] = ()
    calls: tuple[Called, ...] = ()
    denied: int = 0
    """Calls that were refused before they began."""
    why: str = ""
    """What ended it, in words."""


@dataclass(frozen=True)
class Watched:
    """What one watcher was sent, through whichever orchestrators, in that order."""

    run: str
    seen: tuple[int, ...]
    ended: bool = True
    """It saw the end; what it did not stay for it cannot have missed."""


@dataclass(frozen=True)
class Mark:
    """What a call left on an edge, in the order in which they are there."""

    edge: str
    mark: str
    at: float = 0.0


@dataclass(frozen=True)
class Paid:
    """A request to the model."""

    at: float
    who: str
    """The orchestrator that asked."""
    key: str
    turn: int


@dataclass(frozen=True)
class Spell:
    """A time in which an orchestrator could not know what the others did."""

    who: str
    since: float
    until: float
    kind: str = ""


@dataclass(frozen=True)
class Bounds:
    """The budgets that are in force."""

    calls_of_run: int
    turns_of_run: int
    calls_of_user: int


@dataclass
class History:
    """All of it."""

    asked: Sequence[Asked] = ()
    stored: Sequence[Stored] = ()
    watched: Sequence[Watched] = ()
    marks: Sequence[Mark] = ()
    paid: Sequence[Paid] = ()
    spells: Sequence[Spell] = ()
    untold: Sequence[str] = ()
    """Calls that ended on an edge which was never told that somebody heard of it."""
    bounds: Bounds = field(default_factory=lambda: Bounds(1 << 30, 1 << 30, 1 << 30))


@dataclass
class Findings:
    """What was broken; each list has a sentence for each."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    overspent: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Said not to have run, and it did."""

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {name: len(found) for name, found in vars(self).items()}

    def lines(self, most: int = 8) -> list[str]:
        """For people: a few of each kind."""
        return [f"  {name}: {one}" for name, found in vars(self).items() for one in found[:most]]


def examine(history: History) -> Findings:
    """Compare everything with everything."""
    marks = Counter(one.mark for one in history.marks)
    return Findings(
        lost=[
            *unended(history.asked, history.stored),
            *unseen(history.stored, history.watched),
            *without_effect(history.stored, marks),
            *(f"{one} ended on its edge, and nobody was told" for one in history.untold),
        ],
        duplicated=[
            *begun_twice(history.asked, history.stored),
            *done_twice(marks),
            *seen_twice(history.stored, history.watched),
            *paid_twice(history.stored, history.paid, history.spells),
        ],
        out_of_order=[
            *records_astray(history.stored, history.watched),
            *sessions_astray(history.asked, history.stored),
            *effects_astray(history.asked, certain(history.stored, history.marks)),
        ],
        overspent=overspent(history, marks),
        wrong=denied_but_done(history.stored, marks),
    )


def key_of(mark: str) -> str:
    """Whose call left a mark."""
    return mark.partition(".")[0]


def turn_of(mark: str) -> int:
    """In which turn of it."""
    return int(mark.split(".")[1])


def family_of(key: str) -> str:
    """The run above, for what a sub-run did."""
    return key.partition("s")[0]


def unended(asked: Iterable[Asked], stored: Iterable[Stored]) -> list[str]:
    """Runs that were accepted and are not there, have not ended, or ended by a fault."""
    by_id = {one.run: one for one in stored}
    found: list[str] = []
    for one in asked:
        for run in sorted(one.runs):
            kept = by_id.get(run)
            if kept is None:
                found.append(f"run {run} ({one.key}) was accepted, and is not there")
            elif kept.state != "ended":
                found.append(f"run {run} ({one.key}) is still {kept.state}")
            elif kept.stop in FAULTY:
                why = f"{kept.stop or 'no reason'} {kept.why}".strip()
                found.append(f"run {run} ({one.key}) ended by a fault: {why}")
    return found


def unseen(stored: Iterable[Stored], watched: Iterable[Watched]) -> list[str]:
    """Records that are in the store, and that somebody who watched to the end never saw."""
    kept = {one.run: {told.seq: told.kind for told in one.told} for one in stored}
    found: list[str] = []
    for one in watched:
        missed = sorted(set(kept.get(one.run, {})) - set(one.seen)) if one.ended else []
        if missed:
            kinds = Counter(kept[one.run][seq] for seq in missed)
            found.append(f"a watcher of {one.run} missed {missed[:5]}: {dict(kinds)}")
    return found


def without_effect(stored: Iterable[Stored], marks: Mapping[str, int]) -> list[str]:
    """Calls that are said to have run, and left nothing."""
    return [
        f"{call.mark} of {one.run} is told as {call.outcome}, and left no mark"
        for one in stored
        for call in one.calls
        if call.mark and call.outcome == "ok" and not marks.get(call.mark)
    ]


def denied_but_done(stored: Iterable[Stored], marks: Mapping[str, int]) -> list[str]:
    """Calls that are said not to have run, and did."""
    return [
        f"{call.mark} of {one.run} is told as {call.outcome}, and left a mark"
        for one in stored
        for call in one.calls
        if marks.get(call.mark) and call.outcome and call.outcome not in HAPPENED | MAYBE
    ]


def begun_twice(asked: Iterable[Asked], stored: Iterable[Stored]) -> list[str]:
    """Keys with more than one run, by what clients were told or by what is stored."""
    there: dict[str, set[str]] = defaultdict(set)
    for one in stored:
        there[one.key].add(one.run)
    for one in asked:
        there[one.key] |= one.runs
    return [f"{key} began {sorted(runs)}" for key, runs in there.items() if key and len(runs) > 1]


def done_twice(marks: Mapping[str, int]) -> list[str]:
    """Effects that happened more than once."""
    return [f"{mark} happened {count} times" for mark, count in marks.items() if count > 1]


def seen_twice(stored: Iterable[Stored], watched: Iterable[Watched]) -> list[str]:
    """Records that are stored, or were told to one watcher, more than once."""
    rows = [(one.run, [told.seq for told in one.told], "the store") for one in stored]
    rows += [(one.run, list(one.seen), "a watcher") for one in watched]
    found: list[str] = []
    for run, numbers, who in rows:
        twice = [seq for seq, count in Counter(numbers).items() if count > 1]
        if twice:
            found.append(f"{who} has {twice[:5]} of {run} more than once")
    return found


def paid_twice(
    stored: Iterable[Stored], paid: Iterable[Paid], spells: Sequence[Spell]
) -> list[str]:
    """Replies that were stored, and asked for again by somebody who could have known."""
    replied: dict[tuple[str, int], float] = {}
    for one in stored:
        for told in one.told:
            if told.kind == "replied":
                replied.setdefault((one.key, told.turn), told.at)
    found: list[str] = []
    for one in paid:
        at = replied.get((one.key, one.turn))
        # The clock that stamps a reply is read before the reply is stored, a moment later.
        if at is not None and one.at > at + 1.0 and not _was_away(one, spells):
            late = one.at - at
            found.append(f"turn {one.turn} of {one.key} by {one.who}, {late:.1f} s after its reply")
    return found


def _was_away(one: Paid, spells: Sequence[Spell]) -> bool:
    return any(
        spell.who == one.who and spell.since <= one.at <= spell.until + DROWSY for spell in spells
    )


def records_astray(stored: Iterable[Stored], watched: Iterable[Watched]) -> list[str]:
    """Records that were told, or are kept, in another order than they happened."""
    found = [
        f"a watcher of {one.run} saw {back}" for one in watched if (back := _steps_back(one.seen))
    ]
    for one in stored:
        turns = [told.turn for told in one.told if told.kind == "turn_started"]
        if turns != sorted(turns):
            found.append(f"the turns of {one.run} are {turns}")
        kinds = [told.kind for told in one.told]
        if "run_finished" in kinds[:-1] and one.state == "ended" and one.stop != "waiting":
            found.append(f"{one.run} goes on after its end: {kinds[-3:]}")
    return found


def _steps_back(seen: Sequence[int]) -> str:
    steps = [f"{a} before {b}" for a, b in pairwise(seen) if b < a]
    return ", ".join(steps[:3])


def sessions_astray(asked: Iterable[Asked], stored: Iterable[Stored]) -> list[str]:
    """Runs that began before the one before them in their session had ended."""
    spans = {one.run: (one.told[0].at, one.told[-1].at) for one in stored if one.told and one.run}
    sessions: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for one in asked:
        sessions[one.session] += [(one.number, run) for run in one.runs if run in spans]
    found: list[str] = []
    for session, runs in sessions.items():
        for (_, before), (_, after) in pairwise(sorted(runs)):
            if spans[after][0] < spans[before][1]:
                early = spans[before][1] - spans[after][0]
                found.append(f"{after} of {session} began {early:.3f} s before {before} ended")
    return found


def certain(stored: Iterable[Stored], marks: Iterable[Mark]) -> list[Mark]:
    """Marks without those of calls that are told as unknown: these may have happened, or still do.

    The run has gone on without them, so there is nothing that they could be before or after.
    """
    doubtful = {call.mark for one in stored for call in one.calls if call.outcome in MAYBE}
    return [one for one in marks if one.mark not in doubtful]


def effects_astray(asked: Iterable[Asked], marks: Sequence[Mark]) -> list[str]:
    """Effects of one session that happened in another order than they were asked for."""
    place = {one.key: (one.session, one.number) for one in asked}
    found: list[str] = []
    last: dict[tuple[str, str], tuple[int, int, str]] = {}
    latest: dict[str, tuple[int, int, str]] = {}
    for one in marks:
        session, number = place.get(key_of(one.mark), ("", 0))
        if session:
            now = number, turn_of(one.mark), one.mark
            before = last.get((one.edge, session), now)
            if now[:2] < before[:2]:
                found.append(f"{one.mark} came after {before[2]} on {one.edge}")
            last[one.edge, session] = max(now, before)
    for one in sorted(marks, key=lambda one: one.at):
        session, number = place.get(key_of(one.mark), ("", 0))
        if session and one.at:
            now = number, turn_of(one.mark), one.mark
            before = latest.get(session, now)
            if now[:2] < before[:2]:
                found.append(f"{one.mark} on {one.edge} came after {before[2]}")
            latest[session] = max(now, before)
    return found


def overspent(history: History, marks: Mapping[str, int]) -> list[str]:
    """Budgets of runs and of users that were exceeded, by what really happened."""
    bounds, found = history.bounds, list[str]()
    user_of = {one.key: one.user for one in history.asked}
    runs, users = Counter[str](), Counter[str]()
    for mark, count in marks.items():
        family = family_of(key_of(mark))
        runs[family] += count
        users[user_of.get(family, "")] += count
    turns = Counter[str]()
    for one in history.stored:
        turns[family_of(one.key)] += sum(told.kind == "replied" for told in one.told)
    for name, spent, most in (
        ("calls of run", runs, bounds.calls_of_run),
        ("calls of user", users, bounds.calls_of_user),
        ("turns of run", turns, bounds.turns_of_run),
    ):
        found += [f"{name} {who}: {n} of {most}" for who, n in spent.items() if who and n > most]
    return found


@dataclass(frozen=True)
class Takeover:
    """A run whose driver was gone, and when another went on with it."""

    run: str
    who: str
    kind: str
    at: float
    seconds: float


def takeovers(
    stored: Iterable[Stored], paid: Iterable[Paid], spells: Iterable[Spell], blind: Sequence[Spell]
) -> list[Takeover]:
    """How long each run stood still whose driver was killed or stopped.

    A spell counts unless the store was away meanwhile (`blind`): then nobody can take anything.
    """
    asked: dict[str, list[Paid]] = defaultdict(list)
    for one in sorted(paid, key=lambda one: one.at):
        asked[one.key].append(one)
    runs = [one for one in stored if one.told and one.key in asked]
    found: list[Takeover] = []
    for spell in spells:
        if spell.kind not in ("kill", "stop"):
            continue
        for one in runs:
            if not _drove(spell, one, asked[one.key]):
                continue
            after = next((told.at for told in one.told if told.at > spell.since), None)
            end = spell.until if after is None else after
            if not any(b.since < end and b.until + DROWSY > spell.since for b in blind):
                found.append(
                    Takeover(one.run, spell.who, spell.kind, spell.since, end - spell.since)
                )
    return found


def _drove(spell: Spell, one: Stored, asked: Sequence[Paid]) -> bool:
    """Whether a run was in the hands of whom a spell befell: it had asked for the last reply."""
    before = [each for each in asked if each.at <= spell.since]
    if not before or before[-1].who != spell.who:
        return False
    if not one.told[0].at <= spell.since < one.told[-1].at:
        return False
    return not any(
        told.kind == "run_resumed" and before[-1].at < told.at <= spell.since for told in one.told
    )
