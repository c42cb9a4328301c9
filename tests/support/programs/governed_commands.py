"""`evoclaw approvals` and `evoclaw stop` over a folder of the test's own, as a process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.cli.approvals import approvals
from evoclaw.cli.oversight import add_oversight
from evoclaw.cli.stop import stop
from evoclaw.core.errors import EvoClawError
from evoclaw.governance.shared_stops import StopBoard
from evoclaw.governance.stops import StopFile
from evoclaw.orchestrator.people.approvals import Approvals
from evoclaw.store.governing.approvals import ApprovalStore


class Folder:
    """The composition root's side, for one folder."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @asynccontextmanager
    async def open_approvals(self, env: Mapping[str, str]) -> AsyncGenerator[Approvals]:
        """The approvals of this folder."""
        async with await ApprovalStore.open(self.home / "approvals.db") as store:
            yield Approvals(store)

    def stop_file(self, env: Mapping[str, str]) -> StopFile:
        """The stops of this folder."""
        return StopFile(self.home / "stops.json")

    @asynccontextmanager
    async def open_stops(self, env: Mapping[str, str]) -> AsyncGenerator[StopBoard]:
        """The same."""
        yield StopBoard(self.stop_file(env))


def main(home: Path, *arguments: str) -> int:
    """Run one command as it would be typed."""
    top = argparse.ArgumentParser()
    add_oversight(top.add_subparsers(dest="command", required=True).add_parser)
    options = top.parse_args(arguments)
    try:
        command = approvals if options.command == "approvals" else stop
        return command(options, Folder(home))
    except EvoClawError as problem:
        sys.stderr.write(f"evoclaw: {problem}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
