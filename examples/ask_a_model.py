"""Ask the default model of this machine about the files in the current folder, read-only.

python examples/ask_a_model.py "What is this project about?"
"""

import asyncio
import os
import sys
from pathlib import Path

from evoclaw import EvoClawError, Level, LoopSettings
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import SystemMessage, user
from evoclaw.core.ports import NoApprover
from evoclaw.core.run import Bus, collect_result, recorded
from evoclaw.core.state import PreparedRun, new_run
from evoclaw.orchestrator.agents.prompt import system_prompt
from evoclaw.wiring.local_run import local_ports


async def main(task: str, here: Path) -> None:
    state = new_run((SystemMessage(system_prompt(here)), user(task)))
    parts = local_ports(
        model=None,
        workspace=here,
        level=Level.READ_ONLY,
        tools=None,
        approver=NoApprover(),
        env=os.environ,
        run=PreparedRun(state),
    )
    async with parts as ports:
        events = run_loop(state, ports, LoopSettings())
        result = await collect_result(recorded(events, Bus(state.run_id, ports.sinks)))
    print(result.text)
    print(f"{ports.provider.model}: {result.stop}, {result.turns} turns, {result.calls} calls")


if __name__ == "__main__":
    try:
        asyncio.run(main(" ".join(sys.argv[1:]) or "What is in this folder?", Path.cwd()))
    except EvoClawError as error:
        sys.exit(str(error))
