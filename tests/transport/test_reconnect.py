from __future__ import annotations

from itertools import pairwise

from evoclaw.transport.link import STEADY_AFTER_S, Backoff


def longest(tries: int, *, lived: float = 0.0) -> float:
    """The longest of many waits after so many tries that failed."""
    waits: list[float] = []
    for _ in range(300):
        backoff = Backoff(first=0.25, cap=30.0)
        for _ in range(tries):
            backoff.wait(0.0)
        waits.append(backoff.wait(lived))
    return max(waits)


def test_backoff_waits_grow_up_to_their_cap() -> None:
    bounds = [min(30.0, 0.25 * 2**tries) for tries in range(12)]
    found = [longest(tries) for tries in range(12)]

    assert all(wait <= bound for wait, bound in zip(found, bounds, strict=True))
    # Three hundred fair draws do not all stay below nine tenths.
    assert all(wait > 0.9 * bound for wait, bound in zip(found, bounds, strict=True))
    assert all(earlier < later for earlier, later in pairwise(found[:7]))


def test_a_stable_connection_resets_the_backoff() -> None:
    assert longest(9, lived=STEADY_AFTER_S) <= 0.25
    assert longest(9, lived=STEADY_AFTER_S / 2) > 0.25


def test_backoff_stays_capped_after_thousands_of_tries() -> None:
    backoff = Backoff()

    assert max(backoff.wait(0.0) for _ in range(3000)) <= 30.0
