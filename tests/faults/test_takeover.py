"""Three orchestrators on one PostgreSQL: one dies or sleeps amid its runs, and others take over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from evoclaw.core.events import RunFinished, StopReason
from evoclaw.core.messages import Reply
from evoclaw.core.replay import Replay
from evoclaw.providers.scripted import calls, says
from evoclaw.store.sessions.sessions import SessionStore
from tests.faults.test_runs import Models, Service, Town
from tests.support.databases import Place
from tests.support.process_fleet import mark, open_process_fleet
from tests.support.runs import open_run_service
from tests.support.waiting import until

SESSIONS, EACH, DRIVERS = 4, 3, 3
STALL = 2.0


class Chain(Models):
    """Each run is one call, and then an answer; all that went before is in the history."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, turn = msgspec.json.decode(await reader.readline())
        self.asked[name, turn] += 1
        writer.write(msgspec.json.encode(self._reply(name, turn)) + b"\n")
        await writer.drain()
        writer.close()

    def _reply(self, name: str, turn: int) -> Reply:
        if turn % 2:
            return says("All done.")
        # The first of each session waits in its call, so that whoever drives it can be hit.
        reply = calls(("bash", {"command": mark(f"{name}-{turn // 2}", hold=turn == 0)}))
        (call,) = reply.calls
        return replace(reply, calls=(replace(call, id=f"call_{turn}"),))


@pytest_asyncio.fixture(name="town")
async def _town(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Town]:
    place = Place(postgres_url, f"test_{token_hex(6)}")
    async with open_process_fleet(tmp_path, "nats") as here, AsyncExitStack() as stack:
        edge = await here.edge(concurrency=8)
        async with here.hub() as hub:
            await here.start_online(hub, edge)
        models = Chain()
        server = await asyncio.start_server(models.answer, "127.0.0.1", 0)
        models.port = server.sockets[0].getsockname()[1]
        stack.callback(server.close)
        yield Town(here, edge, models, place, tmp_path)


async def _drivers(town: Town) -> dict[str, Service]:
    """Orchestrators of whom nobody can tell by the name whether they live."""
    found: dict[str, Service] = {}
    for number in range(DRIVERS):
        name = f"far{number}"
        setting = replace(await town.setting(number + 1), lease=STALL, holder=name)
        found[name] = await town.service(msgspec.json.encode(setting).decode())
    return found


async def _holders(store: SessionStore) -> dict[str, str]:
    """Who holds which run, by the name that it goes by."""
    rows = [run for run in await store.runs(limit=100) if run.holder]
    return {run.id: run.holder.partition("#")[0] for run in rows}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "asleep"])
async def test_fault_10_losing_one_of_three_orchestrators_loses_no_run(
    town: Town, how: signal.Signals
) -> None:
    drivers = await _drivers(town)
    async with open_run_service(town.place, serve=False) as desk, town.store() as store:
        begun: list[str] = []
        for session in range(SESSIONS):
            first = await desk.start(f"s{session}")
            begun.append(first.run_id)
            for number in range(1, EACH):
                view = await desk.start(f"{session}.{number}", session=first.session_id)
                begun.append(view.run_id)
        await until(lambda: sum(town.edge.marks(f"s{n}-0") for n in range(SESSIONS)) == SESSIONS)
        held = await _holders(store)
        victim = max(drivers, key=lambda name: list(held.values()).count(name))
        drivers[victim].signal(how)

        async def taken() -> bool:
            return victim not in (await _holders(store)).values()

        await until(taken, say=f"what {victim} held is taken over")
        town.edge.open_gate()
        if how is signal.SIGSTOP:
            drivers[victim].signal(signal.SIGCONT)  # and goes on as if nothing had been
        for run_id in begun:
            async with asyncio.timeout(60):
                assert (await desk.runs.result("local", run_id)).stop is StopReason.COMPLETED
        await _judge(town, store, begun)


async def _judge(town: Town, store: SessionStore, begun: list[str]) -> None:
    """Nothing is lost, done twice, or out of order."""
    marks = (town.edge.workspace / "marks").read_text().split()
    for session in range(SESSIONS):
        ours = [one for one in marks if one.startswith(f"s{session}-")]
        assert ours == [f"s{session}-{number}" for number in range(EACH)]
    for run_id in begun:
        records = await store.records(run_id)
        assert sum(isinstance(record.event, RunFinished) for record in records) == 1
        assert [record async for record in Replay(records).records()] == records
    answers = [town.models.asked[f"s{n}", turn] for n in range(SESSIONS) for turn in range(1, 6)]
    assert max(answers) == 1, "what came after was asked for once"
