"""The statistics of the gate: paired differences, bets against chance, a campaign's error rate.

The e-value of a candidate is the mean, over a grid of bets, of the product of `1 + bet *
difference` over the validation cases. If the candidate is no better, its expected value is at most
1: for cases that are a sample of tasks, at any time; for a fixed set in random order, after any
fixed number of them (Maclaurin's inequality). So a candidate passes only by the e-value of all
cases, and only a failure may come early.

The level of each candidate follows e-LOND (Xu and Ramdas, 2024): whatever the dependence between
candidates, the expected share of candidates that are no better, among those that pass, is at most
`error_rate` over the whole campaign, however long it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from evoclaw.evolution.candidates import Stage
from evoclaw.evolution.lineage_entries import LineageEntry

BETS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 0.95)
"""Shares of the largest bet that cannot lose everything."""
CAMPAIGN_DECAY = 1.2
"""The share of the error rate that the candidate number t gets is proportional to t^-1.2."""
_SHARES_SUM = 5.591582441177751
"""Riemann's zeta function at `CAMPAIGN_DECAY`: the sum of t^-1.2 over all t."""


class Bets:
    """An e-process: the wealth of bets on numbers whose mean is said to be at most 0."""

    def __init__(self, smallest: float = -1.0) -> None:
        """`smallest` is the lowest number that can come; it is negative."""
        if smallest >= 0:
            raise ValueError("the lowest number must be negative: no bet could lose")
        self._smallest = smallest
        self._sizes = tuple(share / -smallest for share in BETS)
        self._logs = [0.0] * len(BETS)
        self.count = 0

    def add(self, number: float) -> None:
        """Bet on one more number, at least as large as the smallest."""
        if not number >= self._smallest:
            raise ValueError(f"{number} is below {self._smallest}")
        self.count += 1
        if number:
            self._logs = [
                log + math.log1p(size * number)
                for log, size in zip(self._logs, self._sizes, strict=True)
            ]

    @property
    def log_value(self) -> float:
        """The logarithm of the e-value so far."""
        return self.best_after(0)

    def best_after(self, more: int, largest: float = 1.0) -> float:
        """The logarithm of the e-value if `more` numbers came, each the largest that can come."""
        logs = [
            log + more * math.log1p(size * largest)
            for log, size in zip(self._logs, self._sizes, strict=True)
        ]
        top = max(logs)
        return top + math.log(sum(math.exp(log - top) for log in logs) / len(logs))


class CampaignLevel(Struct, frozen=True, kw_only=True):
    """The share of a campaign's error rate that one candidate may spend."""

    index: int
    """Its position among the candidates whose validation has started, from 1."""
    discoveries: int
    """Candidates that passed validation before its own began."""
    level: float

    @property
    def log_needed(self) -> float:
        """The logarithm of the e-value that it needs."""
        return -math.log(self.level)


def level_of(index: int, discoveries: int, error_rate: float) -> CampaignLevel:
    """The level of a candidate by e-LOND."""
    if index < 1 or not 0 <= discoveries < index or not 0 < error_rate < 1:
        raise ValueError(f"no level for {index=}, {discoveries=}, {error_rate=}")
    share = index**-CAMPAIGN_DECAY / _SHARES_SUM
    level = min(error_rate * share * (discoveries + 1), 1.0)
    return CampaignLevel(index=index, discoveries=discoveries, level=level)


def campaign_level(
    entries: Iterable[LineageEntry], candidate: int, error_rate: float
) -> CampaignLevel:
    """The level of a candidate, counted from the lineage.

    A candidate takes its index with its first verdict on validation, also an open one. So a
    validation that was interrupted and starts again keeps its index: it gets no second chance.
    """
    started: set[int] = set()
    passed: set[int] = set()
    for entry in entries:
        if entry.kind != "verdict" or entry.stage != Stage.VALIDATION or entry.candidate is None:
            continue
        if entry.candidate == candidate:
            break
        started.add(entry.candidate)
        if entry.passed:
            passed.add(entry.candidate)
    return level_of(len(started) + 1, len(passed), error_rate)


def fisher_less(worse: int, better: int, runs: int) -> float:
    """The one-sided p-value of Fisher's exact test that `worse` passes are fewer than `better`.

    Both are out of `runs`.
    """
    total, all_runs = worse + better, math.comb(2 * runs, runs)
    low = max(0, total - runs)
    ways = (
        math.comb(total, k) * math.comb(2 * runs - total, runs - k) for k in range(low, worse + 1)
    )
    return min(1.0, sum(ways) / all_runs) if all_runs else 1.0


class Futility:
    """Says early that a candidate will not pass.

    It stops a candidate if even the best remaining cases could not make its e-value large enough,
    or if the differences refute that it is better by `gain`: a candidate that is, on a sample of
    tasks, is stopped with a probability of at most `error`.
    """

    def __init__(self, cases: int, log_needed: float, gain: float, error: float) -> None:
        self._remaining, self._log_needed = cases, log_needed
        self._better = Bets()
        self._not_enough = Bets(gain - 1.0)
        self._gain, self._log_refuted = gain, -math.log(error)

    @property
    def log_value(self) -> float:
        """The logarithm of the candidate's e-value so far."""
        return self._better.log_value

    def add(self, difference: float) -> None:
        """Count the difference of one more case."""
        self._remaining -= 1
        self._better.add(difference)
        self._not_enough.add(self._gain - difference)

    def reason(self) -> str:
        """Why the candidate cannot pass any more; empty if it can."""
        if self._better.best_after(max(0, self._remaining)) < self._log_needed:
            return "the cases that remain cannot show any more that it is better"
        if self._not_enough.log_value >= self._log_refuted:
            return f"it is not better by {self._gain:.0%} of the cases"
        return ""


def mean(numbers: Sequence[float]) -> float:
    """The mean; 0 of none."""
    return sum(numbers) / len(numbers) if numbers else 0.0
