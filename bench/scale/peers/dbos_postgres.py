"""dbos: a workflow for each run, whose replies and calls are steps, on PostgreSQL."""

import asyncio

import peer_load
from dbos import DBOS


@DBOS.step()
async def reply(called: bool) -> dict:
    """The scripted model: a call first, then the answer."""
    calls = [] if called else [{"id": "c1", "name": "todoread", "args": {}}]
    return {"role": "assistant", "content": peer_load.words(), "calls": calls}


@DBOS.step()
async def todoread() -> dict:
    """The tool."""
    return {"role": "tool", "content": "nothing to do"}


@DBOS.workflow()
async def agent(message: str) -> list:
    """Two replies and a call."""
    messages = [{"role": "user", "content": message}]
    while True:
        messages.append(await reply(len(messages) > 1))
        if not messages[-1]["calls"]:
            return messages
        messages.append(await todoread())


async def run(number):
    """One workflow."""
    assert len(await agent(f"go {number}")) == 4


async def main(plan):
    """Measure with the event loop in which dbos was launched."""
    config = {
        "name": "peer",
        "system_database_url": plan["url"],
        "run_admin_server": False,
        "log_level": "ERROR",
        "executor_id": f"process-{plan['process']}",
    }
    DBOS(config=config)
    DBOS.launch()
    try:
        await peer_load.run_load(run, plan)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(peer_load.plan()))
