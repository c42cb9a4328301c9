"""Ask whichever model this machine has about the files in the current folder, reading only.

python examples/ask_a_model.py "What is this project about?"
"""

import asyncio
import os
import sys
from pathlib import Path

from evoclaw import EvoClawError, Level, run
from evoclaw.core.messages import SystemMessage, user
from evoclaw.core.ports import NobodyThere
from evoclaw.orchestrator.prompt import system_prompt
from evoclaw.wiring import local_ports


async def main(task: str, here: Path) -> None:
    parts = local_ports(
        model=None,
        workspace=here,
        level=Level.READ_ONLY,
        tools=None,
        approver=NobodyThere(),
        env=os.environ,
    )
    async with parts as ports:
        result = await run((SystemMessage(system_prompt(here)), user(task)), ports)
    print(result.text)
    print(f"{ports.provider.model}: {result.stop}, {result.turns} turns, {result.calls} calls")


if __name__ == "__main__":
    try:
        asyncio.run(main(" ".join(sys.argv[1:]) or "What is in this folder?", Path.cwd()))
    except EvoClawError as error:
        sys.exit(str(error))
