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
from tests.support.fleet import QUICK, BrokerListener, new_id, open_fleet, tool_command
from tests.support.waiting import until


async def test_a_broadcast_ping_is_answered_by_every_edge(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here, BrokerListener(here.broker) as ear:
        assert (await here.orchestrator.query("pi", "ping")).result["pong"] is True
        here.broker.publish(BROADCAST, encode(Command("ping", {}, "p1")), retain=False)
        await until(lambda: bool(ear.results_of("p1", "pi")) and bool(ear.results_of("p1", "desk")))


async def test_broadcast_commands_other_than_ping_are_ignored(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        edge = here.pi.edge
        assert edge is not None
        commands = [tool_command("mark", text="a"), Command("shutdown", {}, "s1")]
        for command in (*commands, Command("result_ack", {"request_ids": ["x"]})):
            here.broker.publish(BROADCAST, encode(command), retain=False)
        await until(lambda: edge.counts["ignored"] == 3)
        assert (await here.orchestrator.query("pi", "ping")).result["pong"] is True
        assert here.marks.made == []


async def test_tools_list_is_paginated(tmp_path: Path) -> None:
    async def long(text: str) -> str:
        return text

    long.__doc__ = "x" * 40_000
    tools = [tool("shell", name=f"long_{n}")(long) for n in range(9)]
    async with open_fleet(tmp_path, tools=tools) as here:
        answer = (await here.orchestrator.query("pi", "tools_list")).result
        assert answer["next"] is not None and answer["next"] < 12
        member = here.orchestrator.fleet.member("pi")
        assert len(member.tools) == 12


async def test_the_execute_command_is_an_alias_of_tool(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        payload = {"action": "mark", "params": {"text": "a"}}
        here.publish_command(Command("execute", payload, request_id := new_id()))
        await until(lambda: bool(ear.results_of(request_id)))
        assert ear.results_of(request_id)[0]["result"] == "marked a"


async def test_an_edge_accepts_only_its_configured_commands(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        edge = here.pi.edge
        assert edge is not None
        edge.parts = msgspec.structs.replace(edge.parts, accepts=frozenset({"ping", "tool"}))
        outcome = await here.orchestrator.query("pi", "shutdown")
        assert outcome.error_type == "permission_denied"
        assert "it accepts: ping, tool" in outcome.error
        assert (await here.run_tool("mark", text="a")).error is None


async def test_edge_tool_metrics_survive_a_restart(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        await here.run_tool("mark", text="a")
        await here.run_tool("mark", wrong=1)
        figures = (await here.orchestrator.query("pi", "get_metrics")).result
        mark = figures["tools"]["tools"]["mark"]
        assert (mark["total_calls"], mark["success_count"]) == (2, 1)
        assert figures["heartbeat"]["boot_id"]
        await here.pi.stop()
        await here.pi.start()
        await here.wait_online()
        figures = (await here.orchestrator.query("pi", "get_metrics")).result
        assert figures["tools"]["tools"]["mark"]["total_calls"] == 2


async def test_edge_tool_metrics_are_stored_with_each_heartbeat(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, heartbeat_s=0.1)
    async with open_fleet(tmp_path, limits=limits) as here:
        await here.run_tool("mark", text="a")

        async def kept() -> bool:
            found = await here.pi.journal.recall("outcomes")
            return found is not None and b'"mark"' in found

        await until(kept)


async def test_unreadable_stored_metrics_do_not_break_calls(tmp_path: Path) -> None:
    async with await Journal.open(tmp_path / "pi.db", durable=False) as journal:
        await journal.remember("outcomes", b"rubbish")
    async with open_fleet(tmp_path) as here:
        assert (await here.run_tool("mark", text="a")).error is None
        figures = (await here.orchestrator.query("pi", "get_metrics")).result
        assert figures["dropped"]["outcomes unreadable"] == 1


async def test_genome_patches_are_versioned_and_survive_a_crash(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        say = here.orchestrator.query
        changed = (await say("pi", "update_genome", {"genome": {"max_turns": 3}})).result
        assert (changed["max_turns"], changed["version"]) == (3, 1)
        again = (await say("pi", "update_genome", {"genome": {"max_turns": 3}})).result
        assert again["version"] == 1, "the same twice is the same"
        older = (await say("pi", "update_strategy", {"strategy": {"notes": ["Be calm."]}})).result
        assert (older["notes"], older["version"]) == (["Be calm."], 2)
        unread = await say("pi", "update_strategy", {"strategy": {"mood": "calm"}})
        assert unread.error_type == "invalid_params"
        assert "'mood' is not part of the genome" in unread.error
        wrong = await say("pi", "update_genome", {"genome": {"max_turns": 1000}})
        assert wrong.error_type == "invalid_params"
        await here.pi.crash()
        await here.pi.start()
        await here.wait_online()
        status = (await say("pi", "evolution")).result
        assert status["genome"]["max_turns"] == 3
        assert [one["version"] for one in status["history"]] == [0, 1, 2]
        assert set(status["fitness"]) >= {"tools", "model"}


async def test_a_genome_rollback_requires_a_version_and_is_idempotent(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
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


async def test_the_genome_sets_call_concurrency_and_timeouts(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        say = here.orchestrator.query
        member = here.orchestrator.fleet.member("pi")
        approved, old = dict(member.advertised_hashes), member.genome
        await say("pi", "update_genome", {"genome": {"concurrency": 1, "call_seconds": 25}})
        await until(lambda: member.genome != old, say="the digest of the genome is advertised")
        assert member.advertised_hashes == approved, "a lower limit needs no new approval"
        asked = [here.start_tool("hold", text=str(n)) for n in range(3)]
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.calls.queued == 2)
        assert edge.calls.in_flight == 1
        above = await say("pi", "update_genome", {"genome": {"concurrency": 5}})
        assert "'concurrency' is 5, above the configured limit of 4" in above.error
        await say("pi", "update_genome", {"genome": {"concurrency": 4}})
        await until(lambda: edge.calls.in_flight == 3, say="there are more places at once")
        here.marks.gate.set()
        assert {(await task).error for task in asked} == {None}


async def test_an_edge_runs_as_many_concurrent_calls_as_configured(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, limits=replace(QUICK, concurrency=9)) as here:
        asked = [here.start_tool("hold", text=str(n)) for n in range(10)]
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: (edge.calls.in_flight, edge.calls.queued) == (9, 1))
        here.marks.gate.set()
        assert {(await task).error for task in asked} == {None}


async def test_a_call_is_limited_by_the_genomes_call_seconds(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        await here.orchestrator.query("pi", "update_genome", {"genome": {"call_seconds": 0.2}})
        command = tool_command("hold", text="a", timeout_ms=30_000)
        here.publish_command(command)
        await until(lambda: bool(ear.results_of(command.request_id)))
        assert ear.results_of(command.request_id)[0]["error_type"] == "timeout"


async def test_an_edge_answers_a_shutdown_command_before_it_exits(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        outcome = await here.orchestrator.query("pi", "shutdown")
        assert outcome.result == {"leaving": True}
        await here.pi.ended()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))


@pytest.fixture(name="signer")
def _signer(tmp_path: Path) -> Signer:
    return Signer.load_or_create(tmp_path / "key")


async def test_an_edge_with_an_orchestrator_key_accepts_only_signed_commands(
    tmp_path: Path, signer: Signer
) -> None:
    clock = OrchestratorClock()
    check = SignedGrantCheck("pi", Verifier(signer.public_key), clock)
    async with (
        open_fleet(tmp_path, check=check, grants=GrantSigner(signer), start=False) as here,
        BrokerListener(here.broker) as ear,
    ):
        here.pi.clock = clock
        await here.pi.start()
        await here.wait_online()
        assert (await here.run_tool("mark", text="a")).text == "marked a"
        assert (await here.orchestrator.query("pi", "evolution")).status == "success"
        unsigned = [
            tool_command("mark", text="b"),
            Command("update_genome", {"genome": {"prompt": "Obey."}}, "g1"),
            Command("cancel", {"request_id": "x"}, "c1"),
            Command("job", {}, "j1"),
            Command("shutdown", {}, "s1"),
        ]
        for command in unsigned:
            here.publish_command(command)
            await until(lambda command=command: bool(ear.results_of(command.request_id)))
            assert ear.results_of(command.request_id)[0]["error_type"] == "permission_denied"
        assert (await here.orchestrator.query("pi", "evolution")).result["genome"]["prompt"] == ""
        assert here.marks.made == ["a"]
        row = await here.pi.journal.get(unsigned[0].request_id)
        assert row is None, "what was not granted is not even written down"


async def test_a_command_can_be_restricted_to_one_signing_key(
    tmp_path: Path, signer: Signer
) -> None:
    other = Signer.load_or_create(tmp_path / "other")
    clock = OrchestratorClock()
    both = Verifier(signer.public_key, other.public_key)
    check = SignedGrantCheck("pi", both, clock, only={"shutdown": Verifier(other.public_key)})
    async with open_fleet(tmp_path, check=check, grants=GrantSigner(signer), start=False) as here:
        here.pi.clock = clock
        await here.pi.start()
        await here.wait_online()
        assert (await here.run_tool("mark", text="a")).text == "marked a"
        assert (await here.orchestrator.query("pi", "shutdown")).error_type == "permission_denied"


async def test_a_result_is_resent_after_its_grant_expired(tmp_path: Path, signer: Signer) -> None:
    clock = OrchestratorClock()
    check = SignedGrantCheck("pi", Verifier(signer.public_key), clock)
    async with (
        open_fleet(tmp_path, check=check, grants=GrantSigner(signer), start=False) as here,
        BrokerListener(here.broker) as ear,
    ):
        here.pi.clock = clock
        await here.pi.start()
        await here.wait_online()
        here.link.drop_next('"command":"result_ack"', count=10**6)
        request_id = new_id()
        assert (await here.run_tool("mark", text="a", request_id=request_id)).error is None
        sent = (await here.row(request_id)).payload
        command = msgspec.json.decode(sent) | {"expires_at": None}
        told = len(ear.results_of(request_id))
        clock.set(clock.now() + 3 * 86_400)  # the grant has expired long ago
        here.publish_command(msgspec.json.encode(command))
        await until(lambda: len(ear.results_of(request_id)) > told)
        assert {end["status"] for end in ear.results_of(request_id)} == {"success"}
        assert here.marks.made == ["a"]


async def test_a_command_that_outlives_the_journals_dedupe_window_is_refused(
    tmp_path: Path,
) -> None:
    limits = msgspec.structs.replace(QUICK, dedupe_retention_s=60.0)
    async with open_fleet(tmp_path, limits=limits) as here:
        result = await here.run_tool("mark", text="a", queue=3600)
        assert result.error is ErrorKind.INVALID_PARAMS
        assert "remembers" in result.text
        assert (await here.run_tool("mark", text="b", queue=30)).error is None


async def test_a_command_with_too_many_hops_is_refused(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        command = tool_command("mark", text="a", hops=4)
        here.publish_command(command)
        await until(lambda: bool(ear.results_of(command.request_id)))
        assert ear.results_of(command.request_id)[0]["error_type"] == "permission_denied"
        assert here.marks.made == []


async def test_a_crashed_edge_and_orchestrator_leave_no_tasks(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with open_fleet(tmp_path) as here:
        for n in range(6):
            here.start_tool("hold", text=str(n))
        await here.marks.waiting.wait()
        await here.pi.crash()
        await here.crash()
    left = asyncio.all_tasks() - before
    assert left == set()
