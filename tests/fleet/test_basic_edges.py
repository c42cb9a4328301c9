"""Edges that speak only the basic messages: advert, heartbeat, command, report."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evoclaw.core.messages import JSON
from evoclaw.transport.outcomes import read_outcome, to_result
from evoclaw.transport.requests import CommandTimeouts
from evoclaw.transport.topics import BROADCAST, TopicKind
from evoclaw.transport.wire import (
    Command,
    Heartbeat,
    Outcome,
    Status,
    WireError,
    encode,
    read_heartbeat,
    read_report,
)
from tests.support.fleet import BrokerListener, FleetHarness, new_id, open_fleet
from tests.support.waiting import until

EYE = "alex-eye"
ADVERT = {"agent_id": EYE, "capabilities": "Pi sensor node"}
HEARTBEAT: JSON = {"report_type": "heartbeat", "payload": {}}


def say(here: FleetHarness, kind: TopicKind, message: JSON, *, retain: bool = False) -> None:
    here.publish_as_edge(kind, json.dumps(message).encode(), EYE, retain=retain)


async def introduce(here: FleetHarness) -> None:
    await until(lambda: here.orchestrator.report_receiver.is_connected)
    say(here, TopicKind.CAPABILITIES, ADVERT, retain=True)
    say(here, TopicKind.REPORTS, HEARTBEAT)
    await here.wait_online(EYE)


def prompt(here: FleetHarness, request_id: str = "", work_s: float = 20.0) -> asyncio.Task[Outcome]:
    command = Command("prompt", {"prompt": "How warm is it?"}, request_id or new_id())
    return asyncio.create_task(
        here.orchestrator.requests.ask(EYE, command, CommandTimeouts(work_s, 5.0))
    )


def commands(ear: BrokerListener) -> list[JSON]:
    found = [json.loads(one.payload) for one in ear.heard if one.topic.endswith("eye/commands")]
    return [command for command in found if command["command"] != "hello"]


async def test_a_command_is_sent_once_to_an_edge_that_would_run_it_twice(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, start=False) as here, BrokerListener(here.broker) as ear:
        await introduce(here)
        asked = prompt(here, request_id := new_id())
        await until(lambda: len(commands(ear)) == 1)
        counts = here.orchestrator.requests.edge_queues.counts
        await until(lambda: counts["not published again"] == 1)
        say(here, TopicKind.REPORTS, HEARTBEAT)
        answer = {"request_id": request_id, "content": "21 degrees"}
        say(here, TopicKind.REPORTS, {"report_type": "result", "payload": answer})
        outcome = await asked
        assert (outcome.status, outcome.result) == ("success", "21 degrees")
        await until(lambda: b"21 degrees" in ear.heard[-1].payload)
        assert [command["command"] for command in commands(ear)] == ["prompt"]


async def test_a_command_that_was_sent_before_a_restart_is_not_sent_again(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, start=False) as here, BrokerListener(here.broker) as ear:
        await introduce(here)
        asked = prompt(here, request_id := new_id())
        await until(lambda: len(commands(ear)) == 1)
        asked.cancel()
        await here.restart()
        await introduce(here)
        asked = prompt(here, request_id)
        await until(lambda: here.orchestrator.requests.counts["not sent again"] == 1)
        answer = {"request_id": request_id, "status": "success", "result": "late"}
        say(here, TopicKind.REPORTS, answer)
        assert (await asked).result == "late"
        assert len(commands(ear)) == 1


async def test_a_command_waits_for_an_edge_that_is_offline_until_its_next_sign_of_life(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path, start=False) as here, BrokerListener(here.broker) as ear:
        await introduce(here)
        here.publish_as_edge(TopicKind.STATUS, encode(Status(EYE, "offline")), EYE)
        await until(lambda: not here.orchestrator.fleet.is_online(EYE))
        asked = prompt(here, request_id := new_id())
        await here.wait_for_state(request_id, "queued")
        assert commands(ear) == []
        say(here, TopicKind.STATUS, {"uptime": 3})
        await until(lambda: len(commands(ear)) == 1)
        say(here, TopicKind.REPORTS, {"status": "success", "result": "here I am"})
        assert (await asked).result == "here I am"


async def test_a_cancelled_command_ends_as_unknown_without_another_message(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, start=False) as here, BrokerListener(here.broker) as ear:
        await introduce(here)
        asked = prompt(here, request_id := new_id())
        await until(lambda: len(commands(ear)) == 1)
        asked.cancel()
        await here.wait_for_state(request_id, "settled")
        assert (await here.row(request_id)).outcome is not None
        assert len(commands(ear)) == 1


async def test_an_answer_without_an_id_counts_only_while_one_command_waits(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, start=False) as here:
        counts = here.orchestrator.report_receiver.counts
        await introduce(here)
        first, second = prompt(here, one := new_id()), prompt(here, two := new_id())
        await here.wait_for_state(one, "sent")
        await here.wait_for_state(two, "sent")
        say(here, TopicKind.REPORTS, {"content": "whose is this?"})
        await until(lambda: counts["without a request id"] == 1)
        for request_id in (one, two):
            say(here, TopicKind.REPORTS, {"content": request_id, "request_id": request_id})
        assert [(await first).result, (await second).result] == [one, two]


async def test_a_full_edge_that_is_online_is_not_replaced_by_a_message_without_a_boot(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        here.publish_as_edge(TopicKind.REPORTS, json.dumps(HEARTBEAT).encode())
        await until(lambda: here.orchestrator.report_receiver.counts["stale heartbeat"] == 1)
        assert here.orchestrator.fleet.member("pi").guarantees_delivery
        assert (await here.run_tool("mark", text="a")).error is None


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"report_type": "result", "payload": {"content": "warm"}}, "warm"),
        ({"report_type": "result", "payload": {"result": "warm", "content": "no"}}, "warm"),
        ({"report_type": "result", "payload": "warm"}, "warm"),
        ({"report_type": "result", "payload": {"result": ""}}, ""),
        ({"status": "success", "result": "warm"}, "warm"),
        ({"content": "warm"}, "warm"),
    ],
)
def test_text_under_result_or_content_is_the_result(message: JSON, text: str) -> None:
    outcome = read_outcome(read_report(EYE, json.dumps(message).encode()))
    result = to_result(outcome, "c1", "edge_call")
    assert (result.error, result.text) == (None, text)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"report_type": "result", "payload": {}}, "`result` or `content`"),
        ({"report_type": "result", "payload": {"result": None}}, "`result` or `content`"),
        ({"status": "success", "tool": "bash"}, "`result` or `content`"),
        ({"report_type": "error", "payload": {"error": "unknown command: x"}}, "unknown command"),
        ({"report_type": "error", "payload": {"content": "no camera"}}, "no camera"),
    ],
)
def test_an_answer_without_a_result_is_an_error(message: JSON, text: str) -> None:
    result = to_result(read_outcome(read_report(EYE, json.dumps(message).encode())), "c1", "x")
    assert result.error is not None
    assert text in result.text


def test_only_a_heartbeat_with_a_boot_id_must_be_readable() -> None:
    loose = read_report(EYE, b'{"report_type":"heartbeat","payload":{"cpu_percent":"high"}}')
    assert read_heartbeat(loose) == Heartbeat()
    wrong = read_report(
        EYE, b'{"report_type":"heartbeat","payload":{"boot_id":"b","cpu_percent":"high"}}'
    )
    with pytest.raises(WireError):
        read_heartbeat(wrong)


async def test_a_command_without_an_id_and_text_that_is_not_json_are_answered(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        edge = here.pi.edge
        assert edge is not None
        for message in (b'{"command":"tool","payload":{"tool":"mark"}}', b"mark it"):
            here.publish_command(message)
            here.broker.publish(BROADCAST, message, retain=False)
        await until(lambda: len(ear.results_of("")) == 2)
        first, second = ear.results_of("")
        assert first["error_type"] == second["error_type"] == "invalid_params"
        assert "has no request_id" in first["error"]
        assert "not JSON" in second["error"]
        assert here.marks.made == []
