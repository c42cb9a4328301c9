"""How many examples a property is tried with: few by default, all with the profile `thorough`."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""Examples of the profile `thorough` for a property that names no number."""
MIN_EXAMPLES = 10


def register_profiles() -> None:
    """Register `quick` and `thorough`, and load `quick`.

    `pytest --hypothesis-profile thorough` loads the other, as `make check` does. A busy machine is
    slow, not wrong: there are no deadlines.
    """
    settings.register_profile("thorough", deadline=None, max_examples=THOROUGH)
    settings.register_profile("quick", deadline=None, max_examples=THOROUGH // 4)
    settings.load_profile("quick")


def examples(count: int) -> int:
    """How many examples to try in this run, of as many as `thorough` tries."""
    share = settings().max_examples / THOROUGH
    return max(min(count, MIN_EXAMPLES), round(count * share))
