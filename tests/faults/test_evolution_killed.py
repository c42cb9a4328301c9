"""A campaign that is killed at each of its steps: nothing is lost, and nothing promoted twice."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from secrets import token_hex

import pytest

from evoclaw import verify
from evoclaw.evolution.candidates import CandidateState, fold_candidates
from evoclaw.evolution.lineage_entries import LineageEntry
from tests.support.databases import Place
from tests.support.evolution_engines import AGENT, open_lineage

ROOT = Path(__file__).parents[2]
LIFE_TIMEOUT_S = 120.0
EXPECTED = {
    "proposal": 1, "verdict": 8, "change": 1, "rollback": 1,
}  # fmt: skip
"""What the lineage has of each kind, whenever the process was killed; rounds may be repeated."""


async def live(place: Place, point: int) -> tuple[int, str]:
    """Live once; the exit code, and what was printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.programs.evolution_campaign", str(place.at),
        place.schema, str(point), cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(LIFE_TIMEOUT_S):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def check(place: Place) -> list[LineageEntry]:
    """The lineage, which the stand-alone verifier accepts."""
    async with open_lineage(place) as lineage:
        entries = list(await lineage.history(AGENT))
        lines = "\n".join(json.dumps(line) for line in await lineage.export(AGENT))
        if entries:
            assert verify.verify(verify.read_bundle(lines.encode()), {})[1] == []
        return entries


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_campaign_killed_at_any_step_continues_and_promotes_once(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    def place(name: object) -> Place:
        if kind == "sqlite":
            return Place(tmp_path / f"{name}.db")
        return Place(request.getfixturevalue("postgres_url"), f"evolution_{token_hex(6)}")

    code, printed = await live(place("whole"), 0)
    assert code == 0
    points = range(1, int(printed) + 1, 1 if kind == "sqlite" else 5)
    assert int(printed) >= 24
    for point in points:
        here = place(point)
        code, _ = await live(here, point)
        assert code == -signal.SIGKILL, point
        before = await check(here)
        code, _ = await live(here, 0)
        assert code == 0, point
        after = await check(here)
        assert after[: len(before)] == before, f"killed at {point}: nothing that was stored is lost"
        kinds = Counter(entry.kind for entry in after)
        rounds = kinds.pop("campaign")
        assert kinds == EXPECTED, f"killed at {point}"
        assert rounds >= 1
        states = [c.state for c in fold_candidates(after).values()]
        assert states == [CandidateState.ROLLED_BACK], f"killed at {point}"
