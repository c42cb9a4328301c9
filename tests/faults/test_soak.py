"""Many turns in one process leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import why_no_postgres

ROOT = Path(__file__).parents[2]
COUNTED = ("tasks", "fds", "processes", "files")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_300_turns_with_failures_cancels_and_timeouts_leak_no_resources(store: str) -> None:
    if store == "postgres" and (reason := why_no_postgres()):
        pytest.skip(reason)
    turns = ("--turns", "300", "--warm-up", "100", "--store", store)
    argv = (sys.executable, "-m", "bench.soak", *turns)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=400)
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["turns"] >= 300
    assert {"completed", "cancelled"} <= set(found["stops"]), done.stdout
    for name in COUNTED:
        warm, end, left = found[name]
        assert end <= warm, f"{name}: {done.stdout}{done.stderr}"
        assert left <= 0, f"{name} after the end: {done.stdout}{done.stderr}"
