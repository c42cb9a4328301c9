"""One life of a campaign, as a process that may be killed around any entry of the lineage.

    python -m tests.support.programs.evolution_campaign DATABASE SCHEMA FOLDER POINT

The audit is in FOLDER. A point is reached before and after each entry is stored, and after its
audit record is written; at the number POINT the process kills
itself; 0 is never. It prints how many points it reached.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from evoclaw.evolution.approval import approve
from evoclaw.evolution.candidates import Candidate, Stage, StageResult, fold_candidates
from evoclaw.evolution.lineage_audit import LineageAudit
from evoclaw.observe.audit.writer import open_audit
from evoclaw.store.genomes import SCHEMA, GenomeStore
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
        """Around each entry that is stored, and before it counts as audited."""
        append, set_audited = GenomeStore.append, GenomeStore.set_audited

        async def counted(store: GenomeStore, *arguments: Any, **options: Any) -> Any:
            self.reach()
            added = await append(store, *arguments, **options)
            self.reach()
            return added

        async def marked(store: GenomeStore, agent: str, numbers: Sequence[int]) -> None:
            self.reach()
            await set_audited(store, agent, numbers)

        GenomeStore.append = counted  # pyright: ignore
        GenomeStore.set_audited = marked  # pyright: ignore


async def live(place: Place, folder: Path, points: KillPoints) -> None:
    """Drive the campaign to its end; a person approves at once; the promotion is taken back."""

    async def batches(candidate: Candidate) -> StageResult:
        """Two batches before the end."""
        before = candidate.results.get(Stage.VALIDATION)
        number = 0 if before is None else int(str(before.evidence["batch"])) + 1
        return StageResult(passed=True if number == 2 else None, evidence={"batch": number})

    async def watch(candidate: Candidate, since: float) -> str:
        return "a bound is broken"

    async with AsyncExitStack() as stack:
        lineage = await stack.enter_async_context(open_lineage(place))
        database = await place.open(SCHEMA)
        stack.push_async_callback(database.close)
        audit = stack.enter_context(open_audit(folder))
        recorder = LineageAudit(GenomeStore(database), audit)
        points.arm()
        engine = engine_of(
            lineage, checks={Stage.VALIDATION: batches}, watch=watch, on_entry=recorder.record,
            recover=lambda: recorder.recover(AGENT),
        )  # fmt: skip
        while True:
            await engine.run()
            found = fold_candidates(await lineage.history(AGENT)).values()
            waiting = [c.number for c in found if c.stage is Stage.APPROVAL]
            if not waiting:
                break
            await recorder.record(await approve(lineage, AGENT, waiting[0], by="ann"))


def main() -> None:
    """Live once."""
    at, schema, folder, last = sys.argv[1:]
    points = KillPoints(int(last))
    asyncio.run(live(Place.of(at, schema), Path(folder), points))
    sys.stdout.write(f"{points.reached}\n")


if __name__ == "__main__":
    main()
