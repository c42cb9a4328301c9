"""Several orchestrators of one PostgreSQL: who looks at the outcome of a call, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import msgspec
import pytest

from evoclaw.edge.device import DeviceLimits
from evoclaw.orchestrator.fleet import parked_reports
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.orchestrator.receipts.verifier import ReceiptBreach, ReceiptVerifier
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.receipts import ReceiptStore
from evoclaw.store.databases.postgres import PostgresDatabase
from evoclaw.transport.topics import TopicKind
from evoclaw.trust.receipts import DeviceKey
from tests.edge.test_receipts import sign
from tests.support.databases import Place
from tests.support.fleet import BadLink, BrokerListener, FleetHarness, new_id, open_fleet
from tests.support.waiting import until

pytestmark = pytest.mark.process
KEY = DeviceKey(bytes(range(32)))
WAIT_S = 60.0


@dataclass
class SharedOrchestrator:
    """One of several orchestrators of a database."""

    orchestrator: Orchestrator
    database: PostgresDatabase
    link: BadLink
    breaches: list[ReceiptBreach]

    @property
    def counts(self) -> dict[str, int]:
        return self.orchestrator.report_receiver.counts


@asynccontextmanager
async def another(here: FleetHarness, place: Place) -> AsyncGenerator[SharedOrchestrator]:
    database = await place.open()
    assert isinstance(database, PostgresDatabase)
    async with database:
        link, breaches = BadLink(here.broker), list[ReceiptBreach]()
        orchestrator = Orchestrator(link, CommandStore(database), grants=here.grants)
        verifier = ReceiptVerifier(ReceiptStore(database), on_breach=breaches.append)
        orchestrator.report_receiver.receipts = verifier
        async with orchestrator.connected():
            await orchestrator.wait_for("pi", WAIT_S)
            yield SharedOrchestrator(orchestrator, database, link, breaches)
        await verifier.close()


@pytest.fixture
def shared(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(parked_reports, "PARKING_S", 0.2)
    return Place(postgres_url, f"test_{token_hex(6)}")


async def test_outcomes_of_another_orchestrators_calls_are_looked_up_together(
    tmp_path: Path, shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked_reports, "PARKING_S", 2.0)
    async with open_fleet(tmp_path, limits=DeviceLimits()) as here:
        await here.close()
        async with another(here, shared) as owner, another(here, shared) as idle:
            sign(here.pi, KEY)
            ask = owner.orchestrator.edge("pi").execute
            before = idle.database.commits
            for number in range(20):
                assert (
                    await ask(here.call("mark", text=str(number)), lambda _: None)
                ).error is None
            await until(lambda: idle.counts["taken elsewhere"] == 20, WAIT_S)
            looked = idle.database.commits - before
            stored = await owner.database.read(
                lambda c: c.execute("SELECT count(*) FROM receipts").fetchone()[0]
            )
    assert len(here.marks.made) == 20
    assert stored == 20
    # Less than one look for each call; the rest is what it does while it is idle.
    assert looked <= 12
    assert [breach.kind for breach in owner.breaches] == ["first_use"]
    assert idle.breaches == []


async def test_the_outcome_of_a_dead_orchestrators_call_is_taken_by_another(
    tmp_path: Path, shared: Place
) -> None:
    async with open_fleet(tmp_path, limits=DeviceLimits()) as here:
        await here.close()
        async with another(here, shared) as other:
            sign(here.pi, KEY)
            request_id = new_id()
            async with another(here, shared) as dead:
                call = here.call("hold", text="a", request_id=request_id)
                asking = dead.orchestrator.edge("pi").execute(call, lambda _: None)
                task = asyncio.create_task(asking)
                await here.marks.waiting.wait()
                dead.link.unplug()
                await dead.orchestrator.requests.close(0)
                task.cancel()
                await asyncio.wait([task])
            # It is looked up with the result, and must not take that with it.
            unreadable = {"request_id": "unknown", "exit_code": "no number"}
            report = {"agent_id": "pi", "report_type": "result", "payload": unreadable}
            here.publish_as_edge(TopicKind.REPORTS, msgspec.json.encode(report))
            here.marks.gate.set()
            edge = here.pi.edge
            assert edge is not None
            await until(lambda: bool(edge.reports.unacknowledged), WAIT_S)
            await until(lambda: not edge.reports.unacknowledged, WAIT_S)
            row = await CommandStore(other.database).get(request_id)
    assert row is not None
    assert row.outcome is not None
    assert b"held a" in row.outcome
    assert here.marks.made == ["a"]


async def test_a_result_that_was_not_acknowledged_is_acknowledged_when_it_comes_again(
    tmp_path: Path, shared: Place
) -> None:
    async with open_fleet(tmp_path, limits=DeviceLimits(resend_delay_s=1.0)) as here:
        await here.close()
        async with (
            another(here, shared) as owner,
            another(here, shared) as other,
            BrokerListener(here.broker) as ear,
        ):
            sign(here.pi, KEY)
            call = here.call("mark", text="a")
            await owner.orchestrator.edge("pi").execute(call, lambda _: None)
            await until(lambda: other.counts["taken elsewhere"] == 1, WAIT_S)
            acknowledged = [payload for _, payload in other.link.sent if b"result_ack" in payload]
            assert acknowledged == [], "its owner has done that"
            owner.link.unplug()
            result = next(one for one in ear.heard if b'"exit_code"' in one.payload)
            here.publish_as_edge(TopicKind.REPORTS, result.payload)
            await until(lambda: any(b"result_ack" in sent for _, sent in other.link.sent), WAIT_S)
    assert here.marks.made == ["a"]


async def test_a_fork_is_found_although_the_other_receipt_was_taken_elsewhere(
    tmp_path: Path, shared: Place
) -> None:
    async with open_fleet(tmp_path, limits=DeviceLimits()) as here:
        await here.close()
        async with another(here, shared) as one, another(here, shared) as two:
            sign(here.pi, KEY)
            await one.orchestrator.edge("pi").execute(here.call("mark", text="a"), lambda _: None)
            await here.pi.stop()
            files = {path: path.read_bytes() for path in here.folder.glob("pi.db*")}
            for where, text in ((one, "b"), (two, "c")):
                for path, data in files.items():
                    path.write_bytes(data)
                await here.pi.start()
                sign(here.pi, KEY)
                await where.orchestrator.wait_for("pi", WAIT_S)
                await until(lambda: here.pi.edge is not None and here.pi.edge.is_welcomed, WAIT_S)
                call = here.call("mark", text=text)
                result = await where.orchestrator.edge("pi").execute(call, lambda _: None)
                await here.pi.stop()
    assert result.details["receipt"]["state"] == "invalid"
    assert two.breaches[-1].kind == "fork"
