"""Commands and results that come twice, late, from the wrong one, or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.commands import CommandRow, CommandState, SettleResult
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.journal import CallState
from evoclaw.store.databases.sqlite import StoreError
from evoclaw.transport.requests import CommandTimeouts
from evoclaw.transport.topics import TopicKind
from evoclaw.transport.wire import Command, Outcome, Report, ReportType, encode
from tests.support.fleet import (
    QUICK,
    TOLD_ONCE,
    BrokerListener,
    Fault,
    FleetHarness,
    new_id,
    open_fleet,
    tool_command,
)
from tests.support.waiting import until


def report(request_id: str, agent_id: str = "pi", text: str = "forged") -> bytes:
    """A result as somebody might make it up."""
    payload = {"status": "success", "tool": "hold", "result": text, "request_id": request_id}
    return encode(Report(agent_id, "", ReportType.RESULT, payload))


async def state(here: FleetHarness, request_id: str, agent_id: str = "pi") -> str:
    """How far an edge's journal says that a call came."""
    row = await here.devices[agent_id].journal.get(request_id)
    return "" if row is None else str(row.state)


async def test_fault_01_a_command_delivered_twice_at_once_starts_once(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        command = tool_command("hold", text="a")
        for _ in range(5):
            here.publish_command(command)
        await here.marks.waiting.wait()
        for _ in range(5):
            here.publish_command(command)
        here.marks.gate.set()
        await until(lambda: bool(ear.results_of(command.request_id)))
        assert here.marks.made == ["a"]
        assert {end["result"] for end in ear.results_of(command.request_id)} == {"held a"}


async def test_fault_01_a_command_redelivered_later_is_answered_from_the_journal(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, limits=TOLD_ONCE) as here:
        await here.crash()  # nobody acknowledges
        async with BrokerListener(here.broker) as ear:
            command = tool_command("mark", text="a")
            here.publish_command(command)
            await until(lambda: len(ear.results_of(command.request_id)) == 1)
            await here.pi.crash()
            await here.pi.start()
            await until(
                lambda: len(ear.results_of(command.request_id)) == 2, say="it was not heard"
            )
            here.publish_command(command)
            await until(
                lambda: len(ear.results_of(command.request_id)) == 3, say="it was asked for"
            )
            first, *others = ear.results_of(command.request_id)
            assert others == [first] * 2
        assert here.marks.made == ["a"]


async def test_fault_01_an_acknowledged_command_that_is_redelivered_is_not_run_again(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        assert (await here.run_tool("mark", text="a", request_id=request_id)).error is None
        sent = (await here.row(request_id)).payload
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: not edge.reports.unacknowledged)
        async with BrokerListener(here.broker) as ear:
            here.publish_command(sent)
            await until(lambda: bool(ear.results_of(request_id)))
            (said,) = ear.results_of(request_id)
        assert said["error_type"] == "unknown" and "acknowledged" in said["error"]
        assert here.marks.made == ["a"]
        row = await here.row(request_id)
        assert row.outcome is not None
        assert msgspec.json.decode(row.outcome, type=Outcome).result == "marked a"
        assert await here.store.late_outcomes(request_id) == [], "it says nothing new"


async def test_fault_01_duplicating_every_message_runs_every_call_once(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        here.link.fault = here.pi.link.fault = lambda topic, payload: Fault.TWICE
        results = await asyncio.gather(*(here.run_tool("mark", text=str(n)) for n in range(50)))
        assert [result.error for result in results] == [None] * 50
        assert sorted(here.marks.made, key=int) == [str(n) for n in range(50)]


@pytest.mark.parametrize("when", ["while it runs", "after it ended", "after a restart"])
async def test_fault_02_the_same_id_with_other_arguments_is_a_conflict_and_runs_nothing(
    tmp_path: Path, when: str
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        request_id = new_id()
        first = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        if when != "while it runs":
            here.marks.gate.set()
            await first
        if when == "after a restart":
            await here.pi.crash()
            await here.pi.start()
            await here.wait_online()
        here.publish_command(tool_command("hold", request_id, text="b"))
        await until(
            lambda: any(end.get("error_type") == "conflict" for end in ear.results_of(request_id))
        )
        here.marks.gate.set()
        assert (await first).text == "held a", "who asked first is not told of it"
        assert here.marks.made == ["a"]
        await here.wait_for_state(request_id, "settled")


async def test_fault_02_a_longer_timeout_for_the_same_call_is_no_conflict(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        command = tool_command("hold", text="a", timeout_ms=5_000)
        here.publish_command(command)
        await here.marks.waiting.wait()
        here.publish_command(tool_command("hold", command.request_id, text="a", timeout_ms=20_000))
        here.marks.gate.set()
        await until(lambda: bool(ear.results_of(command.request_id)))
        assert [end["status"] for end in ear.results_of(command.request_id)] == ["success"]
        assert here.marks.made == ["a"]


async def busy(here: FleetHarness) -> None:
    """Take all places of the edge."""
    for n in range(4):
        here.publish_command(tool_command("hold", text=f"busy {n}"))
    await until(lambda: len(here.marks.made) == 4)


async def test_fault_03_a_received_unstarted_call_runs_once_after_a_crash(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        await busy(here)
        request_id = new_id()
        asked = here.start_tool("mark", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        await here.pi.crash()
        assert "a" not in here.marks.made
        await here.pi.start()
        assert (await asked).text == "marked a"
        assert here.marks.made.count("a") == 1


async def test_fault_03_a_received_unstarted_call_expires_after_its_deadline(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        await busy(here)
        request_id = new_id()
        asked = here.start_tool("mark", text="a", request_id=request_id, queue=1.5)
        await here.wait_for_state(request_id, "accepted")
        await here.pi.crash()
        row = await here.row(request_id)
        assert row.expires_at is not None
        await until(lambda: time.time() > (row.expires_at or 0) + 0.1)
        await here.pi.start()
        result = await asked
        assert result.error is ErrorKind.EXPIRED
        assert "a" not in here.marks.made
        assert await state(here, request_id) == CallState.EXPIRED


async def test_fault_04_a_started_call_is_unknown_after_a_crash_and_not_run_again(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        await here.pi.crash()
        await here.pi.start()
        result = await asked
        assert result.error is ErrorKind.UNKNOWN
        assert "may have happened" in result.text
        assert here.marks.made == ["a"]
        assert await state(here, request_id) == CallState.UNKNOWN


async def test_fault_04_an_idempotent_call_is_retried_once_after_a_crash(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("look", text="a", hold=True, request_id=request_id)
        await here.marks.waiting.wait()
        await here.pi.crash()
        here.marks.gate.set()
        await here.pi.start()
        assert (await asked).text == "saw a"
        assert here.marks.made == ["a", "a"]
        second = request_id[:-1] + "2"
        assert [await state(here, one) for one in (request_id, second)] == [
            CallState.UNKNOWN,
            CallState.SUCCEEDED,
        ]


async def test_fault_05_a_result_not_sent_before_a_crash_is_sent_after_it(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        lost = here.pi.link.drop_next('"report_type":"result"', request_id, count=1000)
        asked = here.start_tool("mark", text="a", request_id=request_id)
        await until(lambda: lost() > 0)
        await here.pi.crash()
        here.pi.link.drop_next("nothing")
        await here.pi.start()
        assert (await asked).text == "marked a"
        assert here.marks.made == ["a"]


async def test_fault_06_a_lost_result_is_resent_until_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        lost = here.pi.link.drop_next('"report_type":"result"', request_id, count=3)
        result = await here.run_tool("mark", text="a", request_id=request_id)
        assert (result.text, lost()) == ("marked a", 3)
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: not edge.reports.unacknowledged)
        assert here.marks.made == ["a"]


async def test_fault_07_a_lost_acknowledgement_is_resent_and_the_result_stored_once(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        lost = here.link.drop_next('"command":"result_ack"', count=2)
        assert (await here.run_tool("mark", text="a", request_id=request_id)).text == "marked a"
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: not edge.reports.unacknowledged)
        assert lost() == 2
        assert here.marks.made == ["a"]
        assert await here.store.late_outcomes(request_id) == []


class FullDisk(CommandStore):
    """A store that cannot keep the next outcomes."""

    failures = 0

    async def settle(
        self,
        request_id: str,
        agent_id: str,
        outcome: bytes,
        state: CommandState = CommandState.SETTLED,
    ) -> SettleResult:
        self._fail()
        return await super().settle(request_id, agent_id, outcome, state)

    def settle_soon(
        self,
        request_id: str,
        agent_id: str,
        outcome: bytes,
        *,
        on_result: Callable[[SettleResult], None],
        on_failure: Callable[[BaseException], None],
    ) -> bool:
        self._fail()
        return super().settle_soon(
            request_id, agent_id, outcome, on_result=on_result, on_failure=on_failure
        )

    def _fail(self) -> None:
        if FullDisk.failures > 0:
            FullDisk.failures -= 1
            raise StoreError("no room")


async def test_fault_26_a_result_that_could_not_be_stored_is_resent_by_the_edge(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        here.stores = FullDisk
        await here.restart()
        await here.wait_online()
        FullDisk.failures = 2
        assert (await here.run_tool("mark", text="a")).text == "marked a"
        assert FullDisk.failures == 0
        assert here.orchestrator.requests.counts["the store failed"] == 2
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: not edge.reports.unacknowledged)
        assert here.marks.made == ["a"]


async def test_a_lost_command_is_published_again_until_the_edge_receives_it(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        lost = here.link.drop_next('"command":"tool"', count=3)
        assert (await here.run_tool("mark", text="a")).text == "marked a"
        assert lost() == 3
        assert here.marks.made == ["a"]


@pytest.mark.parametrize("sent", [False, True])
async def test_fault_09_the_next_orchestrator_publishes_stored_unpublished_commands(
    tmp_path: Path, sent: bool
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        command = tool_command("mark", request_id, text="a", expires_at=time.time() + 60)
        assert command.expires_at is not None
        await here.store.put(
            request_id, "pi", command.run_id, encode(command), command.expires_at, sent=sent
        )
        assert here.marks.made == []
        await here.restart()
        await here.wait_for_state(request_id, "settled")
        assert here.marks.made == ["a"]


async def test_fault_09_a_call_repeated_by_the_next_orchestrator_gets_the_first_result(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        await here.restart()
        again = here.start_tool("hold", text="a", request_id=request_id, epoch=2)
        await here.wait_online()
        here.marks.gate.set()
        assert (await again).text == "held a"
        third = await here.run_tool("hold", text="a", request_id=request_id, epoch=3)
        assert third.text == "held a"
        assert here.marks.made == ["a"]


async def test_fault_10_an_orchestrator_with_a_lower_epoch_cannot_start_calls(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        run = new_id().partition(".")[0]
        assert (
            await here.run_tool("mark", text="new", request_id=f"{run}.2.0.1", epoch=2)
        ).error is None
        old = await here.run_tool("mark", text="old", request_id=f"{run}.3.0.1", epoch=1)
        assert old.error is ErrorKind.CONFLICT
        assert "taken over this run" in old.text
        assert here.marks.made == ["new"]
        # The refusal was for the one who is out: the other one may still ask for that very call.
        again = await here.run_tool("mark", text="old", request_id=f"{run}.3.0.1", epoch=2)
        assert again.text == "marked old"


async def test_fault_10_a_refusal_for_the_old_owner_does_not_affect_the_new_owner(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        run = new_id().partition(".")[0]
        await here.run_tool("mark", text="first", request_id=f"{run}.1.0.1", epoch=2)
        request_id = f"{run}.2.0.1"
        lost = here.link.drop_next('"command":"tool"', count=3)
        asked = here.start_tool("mark", text="a", request_id=request_id, epoch=2)
        await until(lambda: lost() == 1)
        here.publish_command(tool_command("mark", request_id, text="a", epoch=1))
        await until(lambda: len(ear.results_of(request_id)) == 1)
        assert ear.results_of(request_id)[0]["error_type"] == "conflict"
        assert (await asked).text == "marked a"


@pytest.mark.parametrize("forget", [False, True])
async def test_fault_11_calls_survive_a_broker_restart(tmp_path: Path, forget: bool) -> None:
    async with open_fleet(tmp_path) as here:
        held = here.start_tool("hold", text="held")
        await here.marks.waiting.wait()
        here.broker.down(forget=forget)
        waiting = [here.start_tool("mark", text=str(n), queue=10) for n in range(10)]
        here.marks.gate.set()
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: len(edge.reports.unacknowledged) == 1)
        here.broker.up()
        assert (await held).text == "held held"
        assert [(await task).error for task in waiting] == [None] * 10
        assert sorted(here.marks.made) == sorted(["held", *map(str, range(10))])


async def test_fault_16_a_command_that_arrives_after_its_deadline_is_not_run(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        command = tool_command("mark", text="a", expires_at=time.time() - 1)
        here.publish_command(command)
        await until(lambda: bool(ear.results_of(command.request_id)))
        assert ear.results_of(command.request_id)[0]["error_type"] == "expired"
        assert here.marks.made == []
        assert await state(here, command.request_id) == CallState.EXPIRED


async def test_fault_16_a_command_that_expires_in_the_edges_queue_is_not_run(
    tmp_path: Path,
) -> None:
    limits = msgspec.structs.replace(QUICK, concurrency=1)
    async with open_fleet(tmp_path, limits=limits) as here, BrokerListener(here.broker) as ear:
        held = here.start_tool("hold", text="a")
        await here.marks.waiting.wait()
        late = tool_command("mark", text="b", expires_at=time.time() + 1)
        here.publish_command(late)
        await until(lambda: here.pi.edge is not None and here.pi.edge.calls.queued == 1)
        await until(lambda: time.time() > (late.expires_at or 0))
        here.marks.gate.set()
        assert (await held).error is None
        await until(lambda: bool(ear.results_of(late.request_id)))
        assert ear.results_of(late.request_id)[0]["error_type"] == "expired"
        assert here.marks.made == ["a"]


async def test_fault_16_a_command_for_an_offline_edge_expires_at_its_deadline(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        await here.pi.stop()
        began = time.monotonic()
        request_id = new_id()
        result = await here.run_tool("hold", text="a", request_id=request_id, queue=0.3)
        assert result.error is ErrorKind.EXPIRED
        assert time.monotonic() - began < 5, "not only when it would have ended"
        await here.pi.start()
        await here.wait_online()
        assert (await here.run_tool("mark", text="b")).error is None
        assert here.marks.made == ["b"]
        again = await here.run_tool("hold", text="a", request_id=request_id)
        assert again.error is ErrorKind.EXPIRED, "closed is closed"


async def test_fault_17_a_result_that_arrives_after_the_call_was_closed_is_a_note(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        given_up = await here.orchestrator.requests.give_up("pi", request_id, "hold")
        assert given_up.error_type == "unknown"
        here.marks.gate.set()

        async def noted() -> bool:
            return bool(await here.store.late_outcomes(request_id))

        await until(noted)
        assert (await asked).error is ErrorKind.UNKNOWN, "what is closed stays as it is"
        (note,) = await here.store.late_outcomes(request_id)
        assert msgspec.json.decode(note.outcome, type=Outcome).result == "held a"
        row = await here.row(request_id)
        assert row.outcome is not None
        assert msgspec.json.decode(row.outcome, type=Outcome).error_type == "unknown"
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: not edge.reports.unacknowledged, say="late ones are acknowledged too")


async def test_fault_17_a_call_closed_by_another_process_keeps_that_outcome(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        unknown = Outcome(request_id, "error", "hold", error="?", error_type="unknown")
        await here.store.settle(request_id, "pi", msgspec.json.encode(unknown))
        here.marks.gate.set()
        assert (await asked).error is ErrorKind.UNKNOWN, "though it was told how it really ended"
        assert len(await here.store.late_outcomes(request_id)) == 1


async def test_commands_in_flight_are_republished_when_their_edge_says_hello(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, start=False) as here:
        here.again = (60.0,)
        await here.restart()
        await here.pi.start()
        await here.wait_online()
        lost = here.link.drop_next('"command":"tool"')
        asked = here.start_tool("mark", text="a", queue=30)
        await until(lambda: lost() == 1)
        here.pi.link.drop()
        assert (await asked).text == "marked a"


class Fleeting(CommandStore):
    """A store that somebody else closes commands in, just after they were looked up."""

    async def wanted(self, agent_id: str, now: float, limit: int = -1) -> list[CommandRow]:
        rows = await super().wanted(agent_id, now, limit)
        for row in rows:
            await self.settle(row.request_id, agent_id, b"{}")
        return rows


async def test_a_command_closed_while_queued_is_not_sent(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, start=False) as here:
        here.stores = Fleeting
        await here.restart()
        asked = here.start_tool("mark", text="a", queue=0.5)
        await until(lambda: len(here.asking) == 1)
        await here.pi.start()
        await here.wait_online()
        await asked
        assert here.marks.made == []


async def test_fault_17_a_command_without_an_answer_is_unknown_after_its_timeout(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        here.pi.link.fault = lambda topic, payload: Fault.DROP
        command = tool_command("mark", text="a")
        began = time.monotonic()
        patience = CommandTimeouts(0.2 - 10.0, 0.2)  # with the grace of ten seconds: 0.4 in all
        outcome = await here.orchestrator.requests.ask("pi", command, patience)
        assert outcome.error_type == "unknown"
        assert time.monotonic() - began < 5
        assert await here.state(command.request_id) == "settled"


async def test_fault_18_a_result_from_the_wrong_agent_is_dropped_and_counted(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, "pi", "evil") as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        here.publish_as_edge(
            TopicKind.REPORTS, report(request_id, "evil"), "evil"
        )  # on its own topic
        here.publish_as_edge(
            TopicKind.REPORTS, report(request_id, "pi"), "evil"
        )  # and with another's name
        requests, reception = here.orchestrator.requests, here.orchestrator.report_receiver
        await until(lambda: requests.counts["from the wrong agent"] == 1)
        await until(lambda: reception.counts["unreadable reports: conflict"] == 1)
        here.marks.gate.set()
        assert (await asked).text == "held a"
        late = new_id()
        await here.store.put(late, "pi", "run", b"{}", time.time() + 60)
        here.publish_as_edge(TopicKind.REPORTS, report(late, "evil"), "evil")
        await until(lambda: requests.counts["foreign"] == 1)
        assert await here.state(late) == "queued"


async def test_a_result_of_an_unknown_request_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        command = tool_command("mark", text="a")
        here.publish_command(command)
        requests = here.orchestrator.requests
        await until(lambda: requests.counts["foreign"] >= 2, say="it is told again and again")
        edge = here.pi.edge
        assert edge is not None
        assert edge.reports.unacknowledged == [command.request_id]
        assert not any(b"result_ack" in message.payload for message in ear.heard)


async def test_unclaimed_results_do_not_delay_other_results(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        for n in range(80):  # more than are told in one go
            here.publish_command(tool_command("mark", text=str(n)))
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: len(edge.reports.unacknowledged) == 80)
        request_id = new_id()
        lost = here.pi.link.drop_next('"report_type":"result"', request_id, count=2)
        assert (await here.run_tool("mark", text="a", request_id=request_id)).text == "marked a"
        assert lost() == 2


async def test_unclaimed_results_beyond_the_limit_are_dropped(
    tmp_path: Path,
) -> None:
    limits = msgspec.structs.replace(QUICK, max_unacknowledged=10)
    async with open_fleet(tmp_path, limits=limits) as here:
        ids = [new_id() for _ in range(30)]
        for request_id in ids:
            here.publish_command(tool_command("mark", request_id, text=request_id))
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.reports.given_up == 20)
        assert len(edge.reports.unacknowledged) == 10
        await here.pi.crash()
        await here.pi.start()
        here.publish_command(tool_command("mark", ids[0], text=ids[0]))
        await here.wait_online()
        assert here.marks.made.count(ids[0]) == 1, "its id is known all the same"


async def test_an_unreadable_result_fails_the_call(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.marks.waiting.wait()
        payload = {"status": "success", "elapsed_ms": "long", "request_id": request_id}
        here.publish_as_edge(
            TopicKind.REPORTS, encode(Report("pi", "", ReportType.RESULT, payload))
        )
        result = await asked
        assert result.error is ErrorKind.INTERNAL
        assert "cannot be read" in result.text


async def test_a_request_id_already_sent_to_another_edge_is_refused(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here:
        request_id = new_id()
        assert (await here.run_tool("mark", "pi", text="a", request_id=request_id)).error is None
        other = await here.run_tool("mark", "desk", text="a", request_id=request_id)
        assert other.error is ErrorKind.INTERNAL
        assert "is for agent 'pi'" in other.text
        assert here.marks.made == ["a"]


async def test_commands_queued_for_a_crashed_edge_run_once_and_expired_ones_never(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        await here.pi.crash()
        wanted = [here.start_tool("mark", text=f"wanted {n}", queue=30) for n in range(100)]
        late = [here.start_tool("mark", text=f"late {n}", queue=0.2) for n in range(20)]
        assert {(await task).error for task in late} == {ErrorKind.EXPIRED}
        await here.pi.start()
        assert {(await task).error for task in wanted} == {None}
        assert sorted(here.marks.made) == sorted(f"wanted {n}" for n in range(100))


async def test_a_heartbeat_without_a_hello_makes_the_orchestrator_request_one(
    tmp_path: Path,
) -> None:
    limits = msgspec.structs.replace(QUICK, heartbeat_s=0.3)
    async with open_fleet(tmp_path, limits=limits, start=False) as here:
        lost = here.pi.link.drop_next('"report_type":"hello"', count=6)
        await here.pi.start()
        await until(lambda: lost() >= 1)
        assert (await here.run_tool("mark", text="a", queue=10)).text == "marked a"


async def test_a_hello_with_many_unacknowledged_results_stays_below_its_size_limit(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        await here.crash()
        for n in range(100):
            here.publish_command(tool_command("mark", f"{'é' * 180}{n}", text=str(n)))
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: len(edge.reports.unacknowledged) == 100)
        hello = edge.hello()
        assert 0 < len(hello.finished) <= 100
        assert len(msgspec.json.encode(hello)) < 200_000


async def test_fault_07_a_hello_is_answered_with_missing_acknowledgements(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, limits=TOLD_ONCE) as here:
        here.link.drop_next('"command":"result_ack"', count=10**6)
        assert (await here.run_tool("mark", text="a")).error is None
        edge = here.pi.edge
        assert edge is not None and len(edge.reports.unacknowledged) == 1
        before = len(here.pi.link.sent)
        here.pi.link.drop()
        await until(lambda: not edge.reports.unacknowledged)
        said = [payload for _, payload in here.pi.link.sent[before:]]
        assert not any(b'"report_type":"result"' in payload for payload in said), "told once"


@pytest.mark.slow
async def test_more_results_than_fit_into_a_hello_are_all_acknowledged(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        here.link.drop_next('"command":"result_ack"', count=10**6)
        here.pi.limits = msgspec.structs.replace(QUICK, resend_delay_s=90.0)
        await here.pi.stop()
        await here.pi.start()
        await here.wait_online()
        await asyncio.gather(*(here.run_tool("mark", text=str(n), queue=300) for n in range(700)))
        edge = here.pi.edge
        assert edge is not None
        # On a slow machine the edge may have said hello in between, and a hello acknowledges some.
        assert len(edge.reports.unacknowledged) > 500, "more than a hello has room for"
        here.link.drop_next("nothing")
        await here.restart()
        await until(
            lambda: not edge.reports.unacknowledged, say="by the hello, and by telling the rest"
        )
        assert len(here.marks.made) == 700


async def test_a_query_to_an_offline_edge_times_out(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        await here.pi.stop()
        with pytest.raises(ToolFailure) as raised:
            await here.orchestrator.requests.query("pi", Command("ping", {}, "p1"), 0.2)
        assert raised.value.kind is ErrorKind.AGENT_OFFLINE
