"""The service killed by SIGKILL at every point of a run, asleep, cancelled, and not listened to."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from evoclaw.core.events import Replied, RunFinished, StopReason
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.replay import Replay
from evoclaw.orchestrator.runs.runs import RunRequest, RunStatus, WatcherTooSlow
from evoclaw.providers.scripted import calls, says
from evoclaw.store.databases.database import StoreFull
from evoclaw.store.sessions.sessions import SessionStore
from tests.support.databases import Place
from tests.support.disks import fill, small_disk
from tests.support.fleet_processes import EdgeProcess, Process
from tests.support.process_fleet import ProcessFleet, mark, open_process_fleet
from tests.support.processes import alive, unique_seconds
from tests.support.programs.killable_service import SCHEMAS, Setting, served
from tests.support.runs import QUICK, Gate, open_run_service
from tests.support.waiting import until

TURNS = 6
APPENDS = 2 * TURNS
FLUSHES = TURNS
"""How often a run of so many turns is written to, and waits for the disk, at least."""
AT_ONCE = 2
"""Services that are killed side by side, where each begins its own runs; with an engine, that gives
out what there is, one would have the other's."""
POINTS = (
    *(f"append:before:{count}" for count in range(1, APPENDS + 1)),
    *(
        f"{step}:{when}:{count}"
        for when in ("before", "after")
        for step, most in (("flush", FLUSHES), ("enqueue", 1), ("end_run", 1))
        for count in range(1, most + 1)
    ),
)


@dataclass
class Models:
    """The model, outside of every process that dies: knows how often it was asked what."""

    port: int = 0
    asked: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    command: Callable[[str, int], str] = lambda name, turn: mark(f"{name}-{turn}")
    turns: int = TURNS
    held: asyncio.Event | None = None
    """Nobody is answered before this is set."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            name, turn = msgspec.json.decode(await reader.readline())
            self.asked[name, turn] += 1
            if self.held is not None and turn == 1:
                await self.held.wait()
            reply = says("All done.")
            if turn < self.turns:
                reply = calls(("bash", {"command": self.command(name, turn)}))
                ids = [replace(one, id=f"call_{turn}") for one in reply.calls]
                reply = replace(reply, calls=tuple(ids))
            writer.write(msgspec.json.encode(reply) + b"\n")
            await writer.drain()
        finally:
            writer.close()


class Service(Process):
    """`tests.support.programs.killable_service` as a process."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.lines: list[str] = []
        self._reading: asyncio.Task[None] | None = None

    async def start(self, *arguments: str) -> None:
        await self.spawn(
            "tests.support.programs.killable_service", *arguments, stdin=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))

    async def child(self, setting: Setting, seconds: float = 60) -> int:
        """Have a fork_server run a service, and see how it ended."""
        assert self.process is not None
        assert self.process.stdin is not None
        before = len(self.lines)
        self.process.stdin.write(msgspec.json.encode(setting) + b"\n")

        def gone() -> bool:
            return any(line.startswith("gone") for line in self.lines[before:])

        await until(gone, seconds, f"a child of the fork_server is gone: {self.output()[-2_000:]}")
        return int(self.lines[-1].split()[1])

    async def said(self, word: str, seconds: float = 30) -> str:
        """Wait for a line that begins so."""

        def there() -> bool:
            return any(line.startswith(word) for line in self.lines)

        await until(there, seconds, f"{word!r}: {self.lines} {self.output()[-2_000:]}")
        return next(line for line in self.lines if line.startswith(word))


@dataclass
class Town:
    """A broker, an edge, a model and a database; services come and go."""

    here: ProcessFleet
    edge: EdgeProcess
    models: Models
    place: Place
    folder: Path

    async def setting(self, number: int = 1) -> Setting:
        """How one of the services gets at everything."""
        address = await self.here.address(f"orchestrator-{number}")
        return Setting(
            str(self.place.at),
            self.place.schema,
            self.models.port,
            address.port,
            address.username,
            address.password,
            str(self.here.folder / "orchestrator.key"),
        )

    async def service(self, *arguments: str) -> Service:
        """A process; it is dead when the test is over."""
        made = Service(self.folder / f"service-{token_hex(4)}.log")
        self.here.stack.push_async_callback(made.kill)
        await made.start(*arguments)
        return made

    @asynccontextmanager
    async def store(self) -> AsyncGenerator[SessionStore]:
        """What is kept, as the test looks at it."""
        database = await self.place.open(*SCHEMAS)
        try:
            yield SessionStore(database)
        finally:
            await database.close()


@pytest_asyncio.fixture(name="town", params=["sqlite", "postgres"])
async def _town(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Town]:
    if request.param == "sqlite":
        place = Place(tmp_path / "evoclaw.db")
    else:
        place = Place(request.getfixturevalue("postgres_url"), f"test_{token_hex(6)}")
    async with open_process_fleet(tmp_path, "nats") as here, AsyncExitStack() as stack:
        edge = await here.edge(concurrency=8)
        async with here.hub() as hub:
            await here.start_online(hub, edge)
        models = Models()
        server = await asyncio.start_server(models.answer, "127.0.0.1", 0)
        models.port = server.sockets[0].getsockname()[1]
        stack.callback(server.close)
        yield Town(here, edge, models, place, tmp_path)


async def test_fault_08_runs_of_a_service_killed_at_any_record_resume_without_repeats(
    town: Town,
) -> None:
    """Each point is a run of its own; one service that comes after takes all of them up."""
    points = {f"run{number}": point for number, point in enumerate(POINTS)}
    at_once = AT_ONCE if town.place.is_file else 1
    fork_servers = [await town.service("fork_server") for _ in range(at_once)]
    settings = [await town.setting(number + 1) for number in range(at_once)]

    async def kill(number: int) -> None:
        fork_server, setting = fork_servers[number], settings[number]
        for name in list(points)[number::at_once]:
            # By its name nobody can tell that it is gone: what was killed stays as it is.
            dies = replace(setting, begin=name, dies=points[name], holder=f"far {name}", lease=600)
            assert await fork_server.child(dies) == -signal.SIGKILL, points[name]

    await asyncio.gather(*(kill(number) for number in range(at_once)))
    async with town.store() as store:
        runs = [name for name in points if await store.run(name) is not None]
        stored: dict[str, int] = {}
        for name in runs:
            events = [record.event for record in await store.records(name)]
            stored[name] = sum(isinstance(event, Replied) for event in events)
        paid = Counter(town.models.asked)
        # Before it is kept there is no run, and nobody was told that there is one.
        assert set(points) - set(runs) == {n for n, p in points.items() if p == "enqueue:before:1"}
        # To it all of them are silent for too long, by its clock or by the server's.
        later = replace(settings[0], until=tuple(runs), ahead=1_000, lease=1.5)
        assert await fork_servers[0].child(later, 120) == 0
        for name in runs:
            run, point = await store.run(name), points[name]
            assert run is not None
            assert run.stop is StopReason.COMPLETED, point
            records = await store.records(name)
            end = records[-1].event
            assert isinstance(end, RunFinished)
            assert (end.text, end.turns, end.calls >= TURNS) == ("All done.", TURNS + 1, True), (
                point
            )
            for turn in range(stored[name]):
                again = town.models.asked[name, turn] - paid[name, turn]
                assert again == 0, f"{point}: a reply that was stored was asked for again"
            assert [town.edge.marks(f"{name}-{turn}") for turn in range(TURNS)] == [1] * TURNS, (
                point
            )
            assert [record async for record in Replay(records).records()] == records, point


@pytest.mark.parametrize("where", ["in a call", "at the model"])
async def test_fault_10_a_stalled_service_is_fenced_after_another_took_its_run_over(
    town: Town, where: str
) -> None:
    models = town.models
    models.turns = 3
    if where == "in a call":
        models.command = lambda name, turn: mark(f"{name}-{turn}", hold=turn == 1)
    else:
        models.held = asyncio.Event()
    old = replace(await town.setting(1), begin="run", lease=1.5, until=("run",))
    sleeper = await town.service(msgspec.json.encode(old).decode())
    if where == "in a call":
        await until(lambda: town.edge.marks("run-1") == 1)
    else:
        await until(lambda: models.asked["run", 1] == 1)
    sleeper.signal(signal.SIGSTOP)
    new = replace(await town.setting(2), lease=1.5, until=("run",))
    heir = await town.service(msgspec.json.encode(new).decode())
    if models.held is not None:
        await until(lambda: models.asked["run", 1] == 2)
        models.held.set()
    else:
        await _taken_over(town)
        town.edge.open_gate()
    assert await heir.said("ended") == "ended run completed All done."
    paid = dict(models.asked)
    sleeper.signal(signal.SIGCONT)
    # It finds out by itself, and tells what the other one made of the run.
    assert await sleeper.said("ended") == "ended run completed All done."
    assert await sleeper.wait_exit() == 0
    assert dict(models.asked) == paid, "it spends nothing after it was taken over"
    assert paid["run", 1] == (1 if where == "in a call" else 2)
    assert [town.edge.marks(f"run-{turn}") for turn in range(3)] == [1, 1, 1]
    async with town.store() as store:
        records = await store.records("run")
        assert [record async for record in Replay(records).records()] == records
        assert sum(isinstance(record.event, RunFinished) for record in records) == 1
        stored = await store.run("run")
        assert stored is not None
        assert stored.epoch == 2


async def _taken_over(town: Town) -> None:
    async with town.store() as store:

        async def so() -> bool:
            stored = await store.run("run")
            return stored is not None and stored.epoch == 2

        await until(so, say="the run is taken over")


async def test_fault_65_an_idempotency_key_starts_one_run_despite_repeated_kills(
    town: Town,
) -> None:
    town.models.turns = 1
    fork_server, setting = await town.service("fork_server"), await town.setting()
    asking = replace(setting, begin="run", idempotency="k", at_once=50)
    for point in ("enqueue:after:1", "flush:after:1", "append:before:2", "end_run:before:1"):
        assert await fork_server.child(replace(asking, dies=point)) == -signal.SIGKILL, point
    async with town.store() as store:
        (only,) = await store.runs()
        assert await fork_server.child(replace(asking, until=(only.id,))) == 0
        assert fork_server.lines[-3:-1] == [
            f"begun {only.id}",
            f"ended {only.id} completed All done.",
        ]
        assert [run.id for run in await store.runs()] == [only.id]
    assert town.edge.marks("run-0") == 1


async def test_fault_20_a_cancelled_run_leaves_no_process_and_sends_no_model_request(
    town: Town,
) -> None:
    nap = unique_seconds()
    town.models.command = lambda name, turn: f"echo x >> marks; sleep {nap}"
    async with served(await town.setting()) as house:
        view, _ = await house.runs.start(LOCAL_PRINCIPAL, RunRequest("run"))
        watcher = house.runs.watch("local", view.run_id)
        await anext(watcher)
        await until(lambda: town.edge.marks("x") == 1)
        await watcher.aclose()  # the client is gone: that alone ends nothing
        assert alive(nap)
        assert await house.runs.cancel("local", view.run_id)
        result = await house.runs.result("local", view.run_id)
        assert result.stop is StopReason.CANCELLED
        await until(lambda: not alive(nap), 10, "no process is left")
        assert town.models.asked.total() == 1
        assert house.runs.active_count == 0


async def test_fault_20_a_run_of_a_killed_service_is_cancelled_by_the_next(town: Town) -> None:
    nap = unique_seconds()
    town.models.command = lambda name, turn: f"echo x >> marks; sleep {nap}"
    setting = await town.setting(1)
    running = await town.service(msgspec.json.encode(replace(setting, begin="run")).decode())
    await until(lambda: town.edge.marks("x") == 1)
    await running.kill()
    async with served(await town.setting(2)) as house:
        await house.runs.cancel("local", "run")
        result = await house.runs.result("local", "run")
        assert result.stop is StopReason.CANCELLED
        assert town.models.asked.total() == 1


async def test_fault_26_a_full_disk_starts_no_run_and_runs_continue_afterwards(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        await _survive_a_full_disk(disk)


async def _survive_a_full_disk(disk: Path) -> None:
    async with open_run_service(Place(disk / "evoclaw.db")) as house:
        gate = house.gate = Gate()
        house.answer = lambda agent, request: says("x" * 200_000)
        view = await house.start("talk")
        await gate.next()
        filler = fill(disk)
        gate.wide = True
        gate.open("x" * 200_000)
        with pytest.raises(StoreFull, match="is full"):
            await house.start("more" * 100_000)
        await until(lambda: house.runs.active_count == 0, say="nobody drives what cannot be kept")
        found = await house.runs.get("local", view.run_id)
        assert found is not None
        assert found.state is RunStatus.RUNNING
        filler.unlink()
        ended = await house.wait_for_state(view.run_id, RunStatus.ENDED)
        assert ended.stop is StopReason.COMPLETED
        records = await house.store.records(view.run_id)
        assert [record async for record in Replay(records).records()] == records
        assert (await house.wait_ended((await house.start("again")).run_id)).stop is not None


async def test_fault_21_stalled_watchers_use_little_memory_and_miss_nothing(
    tmp_path: Path,
) -> None:
    place, words = Place(tmp_path / "evoclaw.db"), 20_000
    text = "\n".join(f"{number:0>100}" for number in range(words))
    async with open_run_service(place, settings=replace(QUICK, slow_watcher=500)) as house:
        house.answer = lambda agent, request: says(text)
        view = await house.start("talk")
        sleepers = [house.runs.watch("local", view.run_id) for _ in range(200)]
        first = [await anext(sleeper) for sleeper in sleepers]
        before = _memory_mb()
        assert (await house.wait_ended(view.run_id)).state is RunStatus.ENDED
        assert _memory_mb() - before < 64
        records = await house.store.records(view.run_id)
        assert len(records) > words
        for sleeper, record in zip(sleepers[:3], first, strict=False):
            got, after = [record], 0
            try:
                got += [one async for one in sleeper]
            except WatcherTooSlow as slow:
                after = slow.after
                assert after == got[-1].seq
                got += await house.records(view.run_id, after)
            assert got == records
        for sleeper in sleepers:
            await sleeper.aclose()


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
