"""Shared by all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow, not wrong: figures come from benchmarks, never from timed tests.
settings.register_profile("evoclaw", deadline=None)
settings.load_profile("evoclaw")
