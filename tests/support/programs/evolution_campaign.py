"""One life of a campaign, as a process that may be killed around any entry of the lineage.

    python -m tests.support.programs.evolution_campaign DATABASE SCHEMA POINT

A point is reached before and after each entry is stored; at the number POINT the process kills
itself; 0 is never. It prints how many points it reached.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from evoclaw.evolution.approval import approve
from evoclaw.evolution.candidates import Candidate, Stage, StageResult, fold_candidates
from evoclaw.store.genomes import GenomeStore
from tests.support.databases import Place
from tests.support.evolution_engines import AGENT, engine_of, open_lineage


class KillPoints:
    """Counts the points, and dies at one of them."""

    def __init__(self, last: int) -> None:
        self.reached, self._last = 0, last

    def reach(self) -> None:
        """Note a point."""
        self.reached += 1
        if self.reached == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        """Around each entry that is stored."""
        append = GenomeStore.append

        async def counted(store: GenomeStore, *arguments: Any, **options: Any) -> Any:
            self.reach()
            added = await append(store, *arguments, **options)
            self.reach()
            return added

        GenomeStore.append = counted  # pyright: ignore


async def live(place: Place, points: KillPoints) -> None:
    """Drive the campaign to its end; a person approves at once; the promotion is taken back."""

    async def batches(candidate: Candidate) -> StageResult:
        """Two batches before the end."""
        before = candidate.results.get(Stage.VALIDATION)
        number = 0 if before is None else int(str(before.evidence["batch"])) + 1
        return StageResult(passed=True if number == 2 else None, evidence={"batch": number})

    async def watch(candidate: Candidate, since: float) -> str:
        return "a bound is broken"

    async with open_lineage(place) as lineage:
        points.arm()
        engine = engine_of(lineage, checks={Stage.VALIDATION: batches}, watch=watch)
        while True:
            await engine.run()
            found = fold_candidates(await lineage.history(AGENT)).values()
            waiting = [c.number for c in found if c.stage is Stage.APPROVAL]
            if not waiting:
                break
            await approve(lineage, AGENT, waiting[0], by="ann")


def main() -> None:
    """Live once."""
    at, schema, last = sys.argv[1:]
    points = KillPoints(int(last))
    asyncio.run(live(Place.of(at, schema), points))
    sys.stdout.write(f"{points.reached}\n")


if __name__ == "__main__":
    main()
