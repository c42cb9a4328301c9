"""Software that we did not write uses our standards unchanged; `make interop` installs it."""

from __future__ import annotations

import pytest
from bench.interop.__main__ import rendered
from bench.interop.judges import JUDGES, Judge, NotInstalled

pytestmark = pytest.mark.process
OWN_TESTS = ("openai (Python)", "agent-client-protocol (Python)", "mcp (Python)")
"""Clients with tests of their own, in `tests/api` and `tests/cli`."""
FOREIGN = [judge for judge in JUDGES if judge.software not in OWN_TESTS]


@pytest.mark.slow
@pytest.mark.parametrize("judge", FOREIGN, ids=lambda judge: judge.software)
async def test_foreign_software_works_unchanged(judge: Judge) -> None:
    try:
        problems = await judge.run(False)
    except NotInstalled as missing:
        pytest.skip(str(missing))
    # What a suite checks and we do not implement is counted in the table, and is no fault.
    faults = {name: why for name, why in problems.items() if not why.startswith("not implemented")}
    assert {name: why for name, why in faults.items() if why} == {}
    assert problems


def test_the_page_has_one_line_for_each_row() -> None:
    row = {
        "standard": "S",
        "revision": "1",
        "software": "x",
        "version": "2",
        "passed": 3,
        "total": 4,
    }
    page = rendered([row, row])
    assert page.count("| S | 1 | x | 2 | 3 of 4 |") == 2
