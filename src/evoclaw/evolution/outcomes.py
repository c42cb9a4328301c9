"""The outcome of a run: how it ended, what it cost, and what went wrong on the way.

It is a fold over the records of the run. A person's rating is not a record: the caller adds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import UNSET, Struct

from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    Prompted,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
)
from evoclaw.core.ports import Decision

_COUNTED: Mapping[type, str] = {Replied: "turns", CallStarted: "calls", ReplyRetried: "retries"}


class Correction(Struct, frozen=True):
    """What a person said to a run to change its course."""

    kind: str
    """`steer`: a message; `deny`: an approval that was refused; `edit`: other arguments."""
    text: str
    """The message, or the recorded reason; empty for other arguments."""


class RunOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a run, so far if it has not ended."""

    genome: str
    """The digest of the genome that it ran with; empty: as configured."""
    stop: StopReason | None
    """Why it ended; null: it has not."""
    turns: int
    """Replies of the model."""
    calls: int
    """Calls that were started."""
    cost: float | None
    """In US dollars; null if a price is unknown, or before the end."""
    errors: dict[str, int]
    """Failed calls by kind, such as `timeout`."""
    model_errors: dict[str, int]
    """Requests to the model that failed for good, by kind."""
    denied: int
    """Calls that a policy or a person denied."""
    retries: int
    """Requests to the model that were repeated."""
    corrections: tuple[Correction, ...]
    """What people said to change its course, in order."""


class OutcomeFold:
    """Folds the records of one run into its outcome."""

    def __init__(self) -> None:
        self._genome = ""
        self._stop: StopReason | None = None
        self._cost: float | None = None
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._model_errors: Counter[str] = Counter()
        self._corrections: list[Correction] = []

    def receive(self, record: Record) -> None:
        """Take the next record."""
        if (count := _COUNTED.get(type(record.event))) is not None:
            self._counts[count] += 1
        match record.event:
            case RunStarted(settings=settings) | RunResumed(settings=settings):
                self._genome = "" if settings.genome is UNSET else settings.genome
                self._stop = None
            case CallFinished(result) if result.error is not None:
                self._errors[str(result.error)] += 1
            case CallJudged(verdict="deny"):
                self._counts["denied"] += 1
            case ApprovalAnswered():
                self._answered(record.event)
            case ReplyFailed(kind):
                self._model_errors[kind] += 1
            case Prompted(message, "steer"):
                self._corrections.append(Correction("steer", message.text))
            case RunFinished(stop, cost=cost):
                self._stop, self._cost = stop, cost
            case _:
                pass

    def outcome(self) -> RunOutcome:
        """The outcome of the records so far."""
        return RunOutcome(
            genome=self._genome,
            stop=self._stop,
            turns=self._counts["turns"],
            calls=self._counts["calls"],
            cost=self._cost,
            errors=dict(sorted(self._errors.items())),
            model_errors=dict(sorted(self._model_errors.items())),
            denied=self._counts["denied"],
            retries=self._counts["retries"],
            corrections=tuple(self._corrections),
        )

    def _answered(self, event: ApprovalAnswered) -> None:
        if event.decision == Decision.DENY:
            self._counts["denied"] += 1
            if event.reason:
                self._corrections.append(Correction("deny", event.reason))
        elif event.arguments is not None:
            self._corrections.append(Correction("edit", ""))
