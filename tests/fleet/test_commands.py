"""What a device can be told beside calls: tools, figures, genome, jobs, leaving; and by whom."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from evoclaw.core.messages import ErrorKind
from evoclaw.edge.device import OrchestratorClock
from evoclaw.edge.grant_check import SignedGrantCheck
from evoclaw.orchestrator.fleet.grant_signer import GrantSigner
from evoclaw.store.calls.journal import Journal
from evoclaw.tools.define import tool
from evoclaw.transport.topics import BROADCAST
from evoclaw.transport.wire import Command, encode
from evoclaw.trust.grants import Signer, Verifier
from tests.support.fleet import QUICK, Ear, house, new_id, tool_command
from tests.support.waiting import until


async def test_ping_is_answered_also_when_all_are_asked(tmp_path: Path) -> None:
    async with house(tmp_path, "pi", "desk") as here, Ear(here.broker) as ear:
        assert (await here.orchestrator.query("pi", "ping")).result["pong"] is True
        here.broker.publish(BROADCAST, encode(Command("ping", {}, "p1")), retain=False)
        await until(lambda: bool(ear.ends("p1", "pi")) and bool(ear.ends("p1", "desk")))


async def test_nothing_is_done_because_everybody_was_told_to(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        edge = here.pi.edge
        assert edge is not None
        commands = [tool_command("mark", text="a"), Command("shutdown", {}, "s1")]
        for command in (*commands, Command("result_ack", {"request_ids": ["x"]})):
            here.broker.publish(BROADCAST, encode(command), retain=False)
        await until(lambda: edge.counts["ignored"] == 3)
        assert (await here.orchestrator.query("pi", "ping")).result["pong"] is True
        assert here.marks.made == []


async def test_the_tools_come_page_by_page(tmp_path: Path) -> None:
    async def long(text: str) -> str:
        return text

    long.__doc__ = "x" * 40_000
    tools = [tool("shell", name=f"long_{n}")(long) for n in range(9)]
    async with house(tmp_path, tools=tools) as here:
        answer = (await here.orchestrator.query("pi", "tools_list")).result
        assert answer["next"] is not None and answer["next"] < 12
        member = here.orchestrator.fleet.member("pi")
        assert len(member.tools) == 12


async def test_execute_says_the_same_in_other_words(tmp_path: Path) -> None:
    async with house(tmp_path) as here, Ear(here.broker) as ear:
        payload = {"action": "mark", "params": {"text": "a"}}
        here.tell(Command("execute", payload, request_id := new_id()))
        await until(lambda: bool(ear.ends(request_id)))
        assert ear.ends(request_id)[0]["result"] == "marked a"


async def test_a_device_takes_only_the_commands_it_was_told_to_take(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        edge = here.pi.edge
        assert edge is not None
        edge.parts = msgspec.structs.replace(edge.parts, accepts=frozenset({"ping", "tool"}))
        outcome = await here.orchestrator.query("pi", "shutdown")
        assert outcome.error_type == "permission_denied"
        assert "it takes: ping, tool" in outcome.error
        assert (await here.ask("mark", text="a")).error is None


async def test_the_figures_tell_how_the_tools_did_and_outlive_the_process(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        await here.ask("mark", text="a")
        await here.ask("mark", wrong=1)
        figures = (await here.orchestrator.query("pi", "get_metrics")).result
        mark = figures["tools"]["tools"]["mark"]
        assert (mark["total_calls"], mark["success_count"]) == (2, 1)
        assert figures["heartbeat"]["boot_id"]
        await here.pi.stop()
        await here.pi.start()
        await here.there()
        figures = (await here.orchestrator.query("pi", "get_metrics")).result
        assert figures["tools"]["tools"]["mark"]["total_calls"] == 2


async def test_the_figures_are_kept_with_the_heartbeats_too(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, heartbeat=0.1)
    async with house(tmp_path, limits=limits) as here:
        await here.ask("mark", text="a")

        async def kept() -> bool:
            found = await here.pi.journal.recall("outcomes")
            return found is not None and b'"mark"' in found

        await until(kept)


async def test_figures_that_cannot_be_read_cost_no_calls(tmp_path: Path) -> None:
    async with await Journal.open(tmp_path / "pi.db", durable=False) as journal:
        await journal.remember("outcomes", b"rubbish")
    async with house(tmp_path) as here:
        assert (await here.ask("mark", text="a")).error is None
        figures = (await here.orchestrator.query("pi", "get_metrics")).result
        assert figures["dropped"]["outcomes unreadable"] == 1


async def test_a_genome_is_changed_in_parts_kept_and_undone(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        say = here.orchestrator.query
        changed = (await say("pi", "update_genome", {"genome": {"max_turns": 3}})).result
        assert (changed["max_turns"], changed["version"]) == (3, 1)
        again = (await say("pi", "update_genome", {"genome": {"max_turns": 3}})).result
        assert again["version"] == 1, "the same twice is the same"
        strategy = (await say("pi", "update_strategy", {"strategy": {"mood": "calm"}})).result
        assert strategy["strategy"] == {"mood": "calm"}
        wrong = await say("pi", "update_genome", {"genome": {"max_turns": 1000}})
        assert wrong.error_type == "invalid_params"
        await here.pi.crash()
        await here.pi.start()
        await here.there()
        status = (await say("pi", "evolution")).result
        assert status["genome"]["max_turns"] == 3
        assert [one["version"] for one in status["history"]] == [0, 1, 2]
        assert set(status["fitness"]) >= {"tools", "model"}


async def test_rolling_back_needs_a_version_so_that_it_may_be_said_twice(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        say = here.orchestrator.query
        for turns in (2, 3, 4):
            await say("pi", "update_genome", {"genome": {"max_turns": turns}})
        unsaid = await say("pi", "evolution", {"action": "roll_back"})
        assert unsaid.error_type == "invalid_params"
        for _ in range(2):
            back = (await say("pi", "evolution", {"action": "roll_back", "version": 1})).result
            assert back["genome"]["max_turns"] == 2
            assert len(back["history"]) == 5
        odd = await say("pi", "evolution", {"action": "jump"})
        assert odd.error_type == "invalid_params"


async def test_the_genome_says_how_many_calls_run_at_once_and_how_long(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        say = here.orchestrator.query
        await say("pi", "update_genome", {"genome": {"concurrency": 1, "call_seconds": 25}})
        member = here.orchestrator.fleet.member("pi")
        await until(lambda: member.is_known and 25 in {one.timeout for one in member.tools})
        asked = [here.asked("hold", text=str(n)) for n in range(3)]
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.calls.queued == 2)
        assert edge.calls.in_flight == 1
        await say("pi", "update_genome", {"genome": {"concurrency": 64}})
        await until(lambda: edge.calls.in_flight == 3, say="there are more places at once")
        here.marks.gate.set()
        assert {(await task).error for task in asked} == {None}


async def test_as_many_calls_run_at_once_as_the_device_is_configured_for(tmp_path: Path) -> None:
    async with house(tmp_path, limits=replace(QUICK, concurrency=9)) as here:
        asked = [here.asked("hold", text=str(n)) for n in range(10)]
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: (edge.calls.in_flight, edge.calls.queued) == (9, 1))
        here.marks.gate.set()
        assert {(await task).error for task in asked} == {None}


async def test_a_call_may_not_take_longer_than_the_genome_gives_it(tmp_path: Path) -> None:
    async with house(tmp_path) as here, Ear(here.broker) as ear:
        await here.orchestrator.query("pi", "update_genome", {"genome": {"call_seconds": 0.2}})
        command = tool_command("hold", text="a", timeout_ms=30_000)
        here.tell(command)
        await until(lambda: bool(ear.ends(command.request_id)))
        assert ear.ends(command.request_id)[0]["error_type"] == "timeout"


async def test_a_device_that_is_told_to_leave_answers_first(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        outcome = await here.orchestrator.query("pi", "shutdown")
        assert outcome.result == {"leaving": True}
        await here.pi.ended()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))


@pytest.fixture(name="signer")
def _signer(tmp_path: Path) -> Signer:
    return Signer.load_or_create(tmp_path / "key")


async def test_a_device_with_an_orchestrators_key_takes_only_what_it_signed(
    tmp_path: Path, signer: Signer
) -> None:
    clock = OrchestratorClock()
    check = SignedGrantCheck("pi", Verifier(signer.public_key), clock)
    async with (
        house(tmp_path, check=check, grants=GrantSigner(signer), start=False) as here,
        Ear(here.broker) as ear,
    ):
        here.pi.clock = clock
        await here.pi.start()
        await here.there()
        assert (await here.ask("mark", text="a")).text == "marked a"
        assert (await here.orchestrator.query("pi", "evolution")).status == "success"
        unsigned = [
            tool_command("mark", text="b"),
            Command("update_genome", {"genome": {"prompt": "Obey."}}, "g1"),
            Command("cancel", {"request_id": "x"}, "c1"),
            Command("job", {}, "j1"),
            Command("shutdown", {}, "s1"),
        ]
        for command in unsigned:
            here.tell(command)
            await until(lambda command=command: bool(ear.ends(command.request_id)))
            assert ear.ends(command.request_id)[0]["error_type"] == "permission_denied"
        assert (await here.orchestrator.query("pi", "evolution")).result["genome"]["prompt"] == ""
        assert here.marks.made == ["a"]
        row = await here.pi.journal.get(unsigned[0].request_id)
        assert row is None, "what was not granted is not even written down"


async def test_a_command_may_be_one_keys_alone(tmp_path: Path, signer: Signer) -> None:
    other = Signer.load_or_create(tmp_path / "other")
    clock = OrchestratorClock()
    both = Verifier(signer.public_key, other.public_key)
    check = SignedGrantCheck("pi", both, clock, only={"shutdown": Verifier(other.public_key)})
    async with house(tmp_path, check=check, grants=GrantSigner(signer), start=False) as here:
        here.pi.clock = clock
        await here.pi.start()
        await here.there()
        assert (await here.ask("mark", text="a")).text == "marked a"
        assert (await here.orchestrator.query("pi", "shutdown")).error_type == "permission_denied"


async def test_what_was_done_is_told_although_its_grant_is_over(
    tmp_path: Path, signer: Signer
) -> None:
    clock = OrchestratorClock()
    check = SignedGrantCheck("pi", Verifier(signer.public_key), clock)
    async with (
        house(tmp_path, check=check, grants=GrantSigner(signer), start=False) as here,
        Ear(here.broker) as ear,
    ):
        here.pi.clock = clock
        await here.pi.start()
        await here.there()
        here.link.drop_next('"command":"result_ack"', count=10**6)
        request_id = new_id()
        assert (await here.ask("mark", text="a", request_id=request_id)).error is None
        sent = (await here.row(request_id)).payload
        command = msgspec.json.decode(sent) | {"expires_at": None}
        told = len(ear.ends(request_id))
        clock.set(clock.now() + 3 * 86_400)  # the grant has expired long ago
        here.tell(msgspec.json.encode(command))
        await until(lambda: len(ear.ends(request_id)) > told)
        assert {end["status"] for end in ear.ends(request_id)} == {"success"}
        assert here.marks.made == ["a"]


async def test_a_command_that_could_outlive_the_journals_memory_is_refused(
    tmp_path: Path,
) -> None:
    limits = msgspec.structs.replace(QUICK, dedupe_seconds=60.0)
    async with house(tmp_path, limits=limits) as here:
        result = await here.ask("mark", text="a", queue=3600)
        assert result.error is ErrorKind.INVALID_PARAMS
        assert "remembers" in result.text
        assert (await here.ask("mark", text="b", queue=30)).error is None


async def test_a_command_that_was_passed_on_too_often_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as here, Ear(here.broker) as ear:
        command = tool_command("mark", text="a", hops=4)
        here.tell(command)
        await until(lambda: bool(ear.ends(command.request_id)))
        assert ear.ends(command.request_id)[0]["error_type"] == "permission_denied"
        assert here.marks.made == []


async def test_nothing_is_left_running_by_a_device_that_is_cut_off(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with house(tmp_path) as here:
        for n in range(6):
            here.asked("hold", text=str(n))
        await here.marks.waiting.wait()
        await here.pi.crash()
        await here.crash()
    left = asyncio.all_tasks() - before
    assert left == set()
