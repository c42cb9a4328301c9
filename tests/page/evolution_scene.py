"""An agent that evolves, as the guide has it: a real service, real cases, a scripted model.

A person tried a note, which did not help, and took it back; then a campaign found better
instructions, which wait for a person.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.core.messages import JSON
from tests.page.house import House
from tests.seat.test_evolution import SETTINGS, adder
from tests.support.service import Client
from tests.support.up_process import ok
from tests.support.waiting import until

AGENT = "adder"
LENIENT_CASES = (2, 5, 8, 11, 14, 17, 20, 23)
"""The cases that a long answer passes, too."""
BEFORE = SETTINGS.partition("[agents.evolution]")[0]
"""The settings without evolution: nothing happens by itself yet."""


@asynccontextmanager
async def evolving_agent(folder: Path) -> AsyncGenerator[tuple[House, int]]:
    """The service, and the number of the candidate that waits for a person."""
    async with adder(folder) as up:
        for number in LENIENT_CASES:
            path = up.home / "cases" / f"sum-{number}.toml"
            path.write_text(path.read_text().replace("equals", "contains"))
        up.configure(BEFORE)
        client = await up.start()
        await _evaluate(client)
        path = f"/v1/genomes/{AGENT}"
        note: JSON = {"notes": ["Answer in one sentence."]}
        reason = "answers are too long"
        ok(await client.post(f"{path}/versions", {"genome": note, "reason": reason}))
        await _evaluate(client)
        ok(await client.post(f"{path}/rollback", {"reason": "no case got better"}))
        await up.stop()
        up.configure(SETTINGS)
        ran = await up.shell.type("evolve", AGENT, "--json")
        assert ran.code == 0, ran.err
        (found,) = json.loads(ran.out)["candidates"]
        assert "approval" not in found["results"], found
        client = await up.start()
        await _evaluate(client, candidate=found["number"])
        yield House(up, client, up.shell), found["number"]


async def _evaluate(client: Client, **more: JSON) -> None:
    """Run all cases, and wait for the result."""
    started = ok(await client.post(f"/v1/agents/{AGENT}/evaluations", more))
    path = f"/v1/agents/{AGENT}/evaluations/{started['id']}"

    async def is_done() -> bool:
        found = ok(await client.get(path))
        assert found["state"] in ("running", "completed"), found
        return found["state"] == "completed"

    await until(is_done, 120, "the evaluation is completed")
