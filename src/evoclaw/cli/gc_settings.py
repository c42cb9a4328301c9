"""When a service collects garbage: not while it starts, and seldom while it serves."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

GC_THRESHOLD_OBJECTS = 10_000
"""New objects between two garbage collections: a thousand concurrent runs allocate many."""


@contextmanager
def paused_gc() -> Generator[None]:
    """Collect no garbage while a process starts: nearly everything it allocates then stays.

    `reduced_gc` within the block ends the pause.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def reduced_gc() -> Generator[None]:
    """Exclude everything built so far from garbage collection, and collect less often."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, *before[1:])
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
