"""CPU profile of a process."""

import cProfile
import pstats
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SHOWN = 45


@contextmanager
def profile(title: str) -> Iterator[None]:
    """Profile the block; print it when it ends."""
    profiler = cProfile.Profile()
    began, worked = time.perf_counter(), time.process_time()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()
        whole, busy = time.perf_counter() - began, time.process_time() - worked
        print(f"{title}: {busy:.2f} s CPU time in {whole:.2f} s", flush=True)
        pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(SHOWN)
        sys.stdout.flush()
