"""`evoclaw run --on` killed at every step: resumed from its recording, it does nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.command_line import Shell, reply
from tests.support.fleet_processes import EdgeProcess
from tests.support.llm_servers import LlmServer, Peer, serving
from tests.support.process_fleet import ProcessFleet, mark
from tests.support.processes import alive, unique_seconds
from tests.support.waiting import until

TURNS = 3


@dataclass
class Desk:
    """Where `evoclaw run --on pi` can be typed, with a scripted model."""

    shell: Shell
    model: LlmServer

    @property
    def recording(self) -> Path:
        return self.shell.workspace / "run.jsonl"

    def recorded(self, kind: str) -> int:
        """How many facts of one kind the recording holds."""
        if not self.recording.exists():
            return 0
        lines = self.recording.read_bytes().split(b"\n")[:-1]
        return sum(json.loads(line)["event"]["type"] == kind for line in lines)

    async def start(self) -> asyncio.subprocess.Process:
        return await self.shell.start(
            "run",
            "--on",
            "pi",
            "--yes",
            "--record",
            "run.jsonl",
            "go",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )


@asynccontextmanager
async def desk(here: ProcessFleet, name: str, *commands: str) -> AsyncGenerator[Desk]:
    """What the model says next depends on nothing but what it is shown: one command a turn."""
    address = await here.address(name)
    home = here.folder / name
    (home / "desk").mkdir(parents=True)
    shutil.copy(here.folder / "orchestrator.key", home)
    shutil.copytree(here.folder / "pairing", home / "pairing")
    (home / "evoclaw.toml").write_text(
        f'[broker]\nurl = "mqtt://{address.host}:{address.port}"\nusername = "{name}"\n'
    )

    async def answer(peer: Peer) -> None:
        shown = server.requests[-1].json["messages"]
        done = sum(message["role"] == "tool" for message in shown)
        if done == len(commands):
            await reply("All done.")(peer)
        else:
            await reply("", ("bash", {"command": commands[done]}))(peer)

    async with serving(answer) as server:
        env = {
            "EVOCLAW_HOME": str(home),
            "EVOCLAW_BROKER_PASSWORD": address.password,
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "EVOCLAW_MODEL": "openai/test",
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        }
        yield Desk(Shell(home, home / "desk", env), server)


KILLED_WHEN = {
    # A request to the model, or a fact in the recording; and the how manieth.
    "the model was asked": ("request", 2),
    "the reply was stored": ("replied", 2),
    "the call was judged": ("call_judged", 2),
    "the call was started": ("call_started", 2),
    "the call had ended": ("call_finished", 2),
    "the last reply was asked for": ("request", TURNS + 1),
}


async def test_fault_08_a_run_killed_at_any_step_resumes_and_repeats_nothing(
    here: ProcessFleet,
) -> None:
    edge = await here.approved()
    await asyncio.gather(
        *(_survive(here, edge, f"desk-{n}", when) for n, when in enumerate(KILLED_WHEN))
    )


async def _survive(here: ProcessFleet, edge: EdgeProcess, name: str, when: str) -> None:
    kind, count = KILLED_WHEN[when]
    marks = [f"{name}-{turn}" for turn in range(TURNS)]
    async with desk(here, name, *map(mark, marks)) as at:
        run = await at.start()

        def reached() -> bool:
            return (len(at.model.requests) if kind == "request" else at.recorded(kind)) >= count

        await until(reached, say=when)
        run.kill()
        await run.wait()
        stored, paid = at.recorded("replied"), len(at.model.requests)
        again = await at.shell.type("run", "--on", "pi", "--yes", "--resume", "run.jsonl")
        assert (again.out, again.code) == ("All done.\n", 0), (when, again.err)
        left = TURNS + 1 - stored
        assert len(at.model.requests) - paid == left, "what was stored is not paid for twice"
        assert (await at.shell.type("replay", "run.jsonl")).code == 0, when
    assert [edge.marks(one) for one in marks] == [1] * TURNS, when


async def test_fault_08_a_resumed_run_gets_the_result_of_a_call_that_ended_meanwhile(
    here: ProcessFleet,
) -> None:
    edge = await here.approved()
    command = mark("m", hold=True, after="echo and this is what it said")
    async with desk(here, "desk-0", command) as at:
        run = await at.start()
        await until(lambda: edge.marks("m") == 1)
        run.kill()
        await run.wait()
        edge.open_gate()
        await until(lambda: "succeeded" in edge.states().values())
        again = await at.shell.type("run", "--on", "pi", "--yes", "--resume", "run.jsonl")
        shown = at.model.requests[-1].json["messages"][-1]
    assert again.out == "All done.\n", again.err
    assert "and this is what it said" in shown["content"]
    assert edge.marks("m") == 1
    assert len(at.model.requests) == 2


async def test_fault_20_an_interrupted_cli_run_leaves_no_process_and_no_model_request(
    here: ProcessFleet,
) -> None:
    edge = await here.approved()
    nap = unique_seconds()
    command = mark("m", before=f"sleep {nap} & setsid -f sleep {nap}", hold=True)
    async with desk(here, "desk-0", command) as at:
        run = await at.start()
        await until(lambda: edge.marks("m") == 1)
        assert len(alive(nap)) >= 2
        run.send_signal(signal.SIGINT)
        await until(lambda: not alive(nap), 2.0, "everything it started is dead within 2 s")
        async with asyncio.timeout(20):
            await run.wait()
        await until(lambda: "cancelled" in edge.states().values())
    async with here.hub(store="desk-0/evoclaw"):
        await until(lambda: not edge.unacknowledged(), say="whoever comes next knows how it ended")
    assert len(at.model.requests) == 1
    assert edge.marks("m") == 1
