"""Shared by all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong: figures come from benchmarks, never from timed tests.
settings.register_profile("evoclaw", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("evoclaw")
