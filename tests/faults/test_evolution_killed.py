"""A campaign that is killed at each of its steps.

Nothing is lost, nothing is promoted twice, and each step has one audit record.
"""

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
from evoclaw.observe.audit.records import unseal
from evoclaw.observe.audit.warm import day_files, read_lines
from tests.support.databases import Place
from tests.support.evolution_engines import AGENT, open_lineage

ROOT = Path(__file__).parents[2]
LIFE_TIMEOUT_S = 120.0
EXPECTED = {
    "proposal": 1, "verdict": 8, "change": 1, "rollback": 1,
}  # fmt: skip
"""What the lineage has of each kind, whenever the process was killed; rounds may be repeated."""


async def live(place: Place, folder: Path, point: int) -> tuple[int, str]:
    """Live once; the exit code, and what was printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.programs.evolution_campaign", str(place.at),
        place.schema, str(folder), str(point), cwd=ROOT, stdout=asyncio.subprocess.PIPE,
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


def recorded(folder: Path) -> list[int]:
    """The numbers of the entries that have an audit record, in the order of the records."""
    found = (unseal(line) for file in day_files(folder / "audit") for line in read_lines(file.path))
    fields = [record.fields for record in found]
    return [int(str(each["entry"])) for each in fields if each["kind"] == "evolution"]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_campaign_killed_at_any_step_continues_and_promotes_once(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    def place(name: object) -> Place:
        if kind == "sqlite":
            return Place(tmp_path / f"{name}.db")
        return Place(request.getfixturevalue("postgres_url"), f"evolution_{token_hex(6)}")

    whole = place("whole")
    code, printed = await live(whole, tmp_path / "whole", 0)
    assert code == 0
    assert recorded(tmp_path / "whole") == [entry.number for entry in await check(whole)]
    points = range(1, int(printed) + 1, 1 if kind == "sqlite" else 5)
    assert int(printed) >= 36
    for point in points:
        here, folder = place(point), tmp_path / str(point)
        code, _ = await live(here, folder, point)
        assert code == -signal.SIGKILL, point
        before = await check(here)
        code, _ = await live(here, folder, 0)
        assert code == 0, point
        after = await check(here)
        assert after[: len(before)] == before, f"killed at {point}: nothing that was stored is lost"
        kinds = Counter(entry.kind for entry in after)
        rounds = kinds.pop("campaign")
        assert kinds == EXPECTED, f"killed at {point}"
        assert rounds >= 1
        states = [c.state for c in fold_candidates(after).values()]
        assert states == [CandidateState.ROLLED_BACK], f"killed at {point}"
        numbers = sorted(recorded(folder))
        assert numbers == [entry.number for entry in after], f"killed at {point}: each once"
