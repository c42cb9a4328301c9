"""A run whose command never ends, in a process of its own: to be stopped from outside."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import RunFinished
from evoclaw.core.ports import Ports
from evoclaw.core.run import watch
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.governance.stops import StopFile, Stops, cancel_on_stop
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.catalogue import load

COMMAND = "sleep {0} & (setsid sleep {0} &); sleep {0}; true"


async def main(home: Path, work: Path, mark: str) -> None:
    """Say how the run ended."""
    stops, deadline = Stops(StopFile(home / "stops.json")), Deadline(60)
    model = Scripted(calls(("bash", {"command": COMMAND.format(mark)})), says("?"))
    files, processes = LocalFiles(work), LocalProcesses(work)
    executor = LocalExecutor(load(("bash",)), files=files, exec=processes)
    ports = Ports(model, executor, Chain((stops,)))
    async with cancel_on_stop(stops, deadline.cancel):
        async for record in watch("go", ports, deadline=deadline):
            if isinstance(record.event, RunFinished):
                sys.stdout.write(f"{record.event.stop}\n")


if __name__ == "__main__":
    signal.alarm(60)
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
