"""The statistics of the gate: exact expectations, and simulations with fixed seeds."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.evolution.gate.sequential_test import (
    BETS,
    CAMPAIGN_DECAY,
    Bets,
    Futility,
    campaign_level,
    fisher_less,
    level_of,
)
from evoclaw.evolution.lineage_entries import LineageEntry
from tests.support.properties import examples

DIFFERENCES = [Fraction(k, 3) for k in range(-3, 4)]


def value_of(numbers: tuple[float, ...] | list[float], smallest: float = -1.0) -> float:
    bets = Bets(smallest)
    for number in numbers:
        bets.add(number)
    return math.exp(bets.log_value)


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 5), min_size=7, max_size=7).filter(any), st.integers(1, 4))
def test_a_candidate_that_is_no_better_has_an_expected_e_value_of_at_most_one(
    weights: list[int], cases: int
) -> None:
    if sum(w * d for w, d in zip(weights, DIFFERENCES, strict=True)) > 0:
        weights = weights[::-1]
    total = sum(weights)
    possible = [(float(d), w / total) for d, w in zip(DIFFERENCES, weights, strict=True) if w]
    expected = sum(
        math.prod(p for _, p in chosen) * value_of([d for d, _ in chosen])
        for chosen in product(possible, repeat=cases)
    )
    assert expected <= 1 + 1e-9


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(DIFFERENCES), min_size=1, max_size=6), st.data())
def test_a_fixed_set_of_cases_in_random_order_keeps_the_expectation(
    differences: list[Fraction], data: st.DataObject
) -> None:
    if sum(differences) > 0:
        differences = [-d for d in differences]
    count = data.draw(st.integers(1, len(differences)))
    orders = list(permutations(map(float, differences), count))
    assert sum(map(value_of, orders)) / len(orders) <= 1 + 1e-9


@settings(max_examples=examples(100))
@given(st.lists(st.floats(-1, 1), max_size=30), st.floats(-1, 1))
def test_more_evidence_for_the_candidate_never_lowers_the_e_value(
    differences: list[float], last: float
) -> None:
    assert value_of([*differences, max(last, 0.0)]) >= value_of(differences) * (1 - 1e-9)
    assert value_of(differences) == pytest.approx(value_of(differences[::-1]), rel=1e-6)


def test_a_null_candidate_rarely_reaches_a_high_e_value_at_any_time() -> None:
    chance = random.Random(7)
    reached = 0
    for _ in range(2_000):
        bets = Bets()
        for _ in range(100):
            bets.add(float(chance.choice((-1, 0, 0, 1))))
            if bets.log_value >= math.log(20):
                reached += 1
                break
    assert reached / 2_000 <= 0.05


def test_the_levels_of_an_endless_campaign_without_a_discovery_sum_up_to_the_error_rate() -> None:
    spent = sum(level_of(t, 0, 0.05).level for t in range(1, 200_000))
    rest = 0.05 * 200_000 ** (1 - CAMPAIGN_DECAY) / (CAMPAIGN_DECAY - 1) / 5.5915824
    assert spent < 0.05
    assert spent + rest == pytest.approx(0.05, rel=1e-4)


def test_a_campaign_of_dependent_candidates_keeps_its_false_discoveries_below_the_error_rate() -> (
    None
):
    chance = random.Random(11)
    shares: list[float] = []
    for _ in range(60):
        # All candidates of a campaign share the noise of the current genome on each case.
        shared = [chance.choice((-0.25, 0.25)) for _ in range(60)]
        passed = false = 0
        for index in range(1, 61):
            gain = 0.5 if index % 4 == 0 else 0.0
            bets = Bets()
            for noise in shared:
                bets.add(gain * (chance.random() < 0.5) + noise + chance.choice((-0.25, 0.25)))
            if bets.log_value >= level_of(index, passed, 0.05).log_needed:
                passed += 1
                false += not gain
        shares.append(false / max(passed, 1))
    assert sum(shares) / len(shares) <= 0.05


def entry(
    number: int, candidate: int, passed: bool | None, stage: str = "validation"
) -> LineageEntry:
    return LineageEntry(
        v=1, agent="a", number=number, prev="", at=0.0, key="", kind="verdict", digest="", by="g",
        candidate=candidate, stage=stage, passed=passed,
    )  # fmt: skip


def test_a_candidate_keeps_its_index_when_its_validation_starts_again() -> None:
    first = [entry(2, 1, None)]
    assert campaign_level(first, 1, 0.05) == level_of(1, 0, 0.05)
    killed = [*first, entry(4, 3, None), entry(5, 3, True), entry(6, 1, None)]
    assert campaign_level(killed, 1, 0.05) == level_of(1, 0, 0.05)
    assert campaign_level(killed, 3, 0.05) == level_of(2, 0, 0.05)
    assert campaign_level(killed, 9, 0.05) == level_of(3, 1, 0.05)
    other = [entry(2, 1, True, "static"), entry(3, 1, True, "safety")]
    assert campaign_level(other, 9, 0.05).index == 1


def test_futility_stops_a_candidate_that_is_no_better_and_keeps_one_that_is() -> None:
    chance = random.Random(3)
    needed = level_of(1, 0, 0.05).log_needed

    def stopped(gain: float) -> str:
        futility = Futility(200, needed, 0.1, 0.02)
        for _ in range(200):
            futility.add(float(chance.random() < gain + 0.1) - float(chance.random() < 0.1))
            if why := futility.reason():
                return why
        return ""

    assert sum(bool(stopped(0.0)) for _ in range(100)) >= 90
    assert sum("not better" in stopped(0.12) for _ in range(300)) / 300 <= 0.02


def test_futility_says_when_too_few_cases_remain() -> None:
    futility = Futility(5, math.log(1000), 0.1, 0.02)
    assert "cannot show" in futility.reason()


@pytest.mark.parametrize(
    ("worse", "better", "runs", "p"),
    [(0, 3, 3, 0.05), (3, 3, 3, 1.0), (12, 19, 20, 0.0098), (0, 0, 5, 1.0), (5, 0, 5, 1.0)],
)
def test_fishers_test_gives_the_exact_probability(
    worse: int, better: int, runs: int, p: float
) -> None:
    assert fisher_less(worse, better, runs) == pytest.approx(p, rel=0.02)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="below"):
        Bets().add(-1.01)
    with pytest.raises(ValueError, match="negative"):
        Bets(0.0)
    with pytest.raises(ValueError, match="no level"):
        level_of(1, 1, 0.05)
    assert all(0 < bet < 1 for bet in BETS)
