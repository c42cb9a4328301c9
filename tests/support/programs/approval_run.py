"""A process that runs a call which needs an approval: to be killed while it waits, and resumed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import user
from evoclaw.core.ports import Policy, Ports
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import fold, new_run
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.stops import StopFile, Stops, cancel_on_stop
from evoclaw.orchestrator.people.approvals import CallApprovals
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.governance.approvals import SCHEMA, ApprovalStore
from evoclaw.store.sessions.recordings import Recording, reopen_recording
from evoclaw.tools.define import tool
from evoclaw.wiring.store import connect_database


def marking(marker: Path) -> BoundTool:
    """A tool that leaves a line each time it runs."""

    @tool(name="mark")
    async def mark(text: str) -> str:
        """Leave a mark.

        Args:
            text: What to write.
        """
        with marker.open("a") as file:
            file.write(f"{text}\n")
        return "done"

    return mark


@asynccontextmanager
async def approval_store(home: Path) -> AsyncGenerator[ApprovalStore]:
    """The approvals in the database of a data folder, as `evoclaw approvals` opens it."""
    async with connect_database({"EVOCLAW_HOME": str(home)}, SCHEMA) as database:
        yield ApprovalStore(database)


async def start_or_resume(home: Path, settings: ApprovalSettings) -> Sequence[Record]:
    """Begin the run of this folder, or go on with it."""
    place = home / "runs" / "run.jsonl"
    again = place.exists()
    async with approval_store(home) as store:
        if again:
            records, recording = reopen_recording(place)
            state, model = fold(records), Scripted(says("done"))
        else:
            recording, state = Recording(place), new_run((user("go"),))
            model = Scripted(calls(("mark", {"text": "once"})), says("done"))
        stops = Stops(StopFile(home / "stops.json"))
        rules: tuple[Policy, ...] = (stops, Autonomy(Level.SUPERVISED))
        approver = CallApprovals(store, settings).approver()
        executor = LocalExecutor([marking(home / "marker")])
        ports = Ports(model, executor, Chain(rules), approver)
        deadline, seen = Deadline(60), list[Record]()
        bus = Bus(state.run_id, [recording], seq=recording.seq)
        async with cancel_on_stop(stops, deadline.cancel):
            events = run_loop(state, ports, LoopSettings(), deadline)
            async for record in recorded(events, bus):
                seen.append(record)
        recording.close()
        return seen


async def main(home: Path, patience: float) -> None:
    """Say how the run ended."""
    settings = ApprovalSettings(nobody="wait", patience_s=patience)
    records = await start_or_resume(home, settings)
    end = records[-1].event
    assert isinstance(end, RunFinished)
    sys.stdout.write(f"{end.stop}: {end.text}\n")


if __name__ == "__main__":
    signal.alarm(60)
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
