"""While the house is up, what it is built from is not walked by the garbage collector."""

from __future__ import annotations

import gc

import pytest

from evoclaw.cli.gc_settings import GC_THRESHOLD_OBJECTS, reduced_gc


def test_gc_freezes_existing_objects_and_restores_its_settings_on_exit() -> None:
    before, aside = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(KeyboardInterrupt), reduced_gc():
        assert gc.get_freeze_count() > aside
        assert gc.get_threshold() == (GC_THRESHOLD_OBJECTS, *before[1:])
        raise KeyboardInterrupt
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
