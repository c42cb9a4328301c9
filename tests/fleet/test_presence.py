"""Who is there: births, wills, boots, silence, clocks, and many at once."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.messages import ErrorKind
from evoclaw.edge.device import OrchestratorClock
from evoclaw.orchestrator.fleet.fleet import Fleet, PresenceChange
from evoclaw.orchestrator.fleet.members import MAX_IGNORED_OLD_BOOT_SIGNS, Member
from evoclaw.transport.clocks import monotonic_clock, monotonic_wall_clock
from evoclaw.transport.topics import TopicKind
from evoclaw.transport.wire import (
    Command,
    Heartbeat,
    Hello,
    Status,
    Welcome,
    as_payload,
    encode,
)
from tests.support.fleet import QUICK, BrokerListener, Fault, new_id, open_fleet, tool_command
from tests.support.waiting import until

DAYS = 3 * 86_400.0


def status(boot: str, counter: int, *, online: bool) -> Status:
    return Status("pi", "online" if online else "offline", boot, counter)


async def test_fault_13_the_last_will_of_an_earlier_connection_is_ignored(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        edge = here.pi.edge
        assert edge is not None
        boot = edge.parts.identity.boot_id
        changes: list[PresenceChange] = []
        here.orchestrator.on_presence(changes.append)
        here.pi.link.drop()
        await until(lambda: edge.connection == 2)
        await here.wait_online()
        seen = len(changes)
        here.publish_as_edge(TopicKind.STATUS, encode(status(boot, 1, online=False)), retain=True)
        await until(lambda: here.orchestrator.report_receiver.counts["stale status"] >= 1)
        assert changes[seen:] == []
        assert (await here.run_tool("mark", text="a")).error is None


async def test_fault_13_the_last_will_of_an_unknown_boot_does_not_take_the_edge_offline(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        here.publish_as_edge(
            TopicKind.STATUS, encode(status("older", 7, online=False)), retain=True
        )
        await until(lambda: here.orchestrator.report_receiver.counts["stale status"] == 1)
        assert here.orchestrator.fleet.is_online("pi")
        await here.restart()  # it finds that will, kept by the broker
        await here.wait_online()
        assert (await here.run_tool("mark", text="a")).error is None


async def test_an_edge_that_fails_says_that_it_is_offline(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        edge = here.pi.edge
        assert edge is not None

        async def failing() -> None:
            raise OSError("no space left on device")

        edge.memory.save = failing
        with pytest.raises(ExceptionGroup):
            await here.pi.stop()
        await until(lambda: not here.orchestrator.fleet.is_online("pi"))


async def test_fault_13_online_and_offline_changes_are_reported_in_order(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        changes: list[PresenceChange] = []
        here.orchestrator.on_presence(changes.append)
        await here.pi.crash()
        await until(lambda: changes == [PresenceChange("pi", False)])
        await here.pi.start()
        await until(lambda: changes == [PresenceChange("pi", False), PresenceChange("pi", True)])


def test_fault_13_an_older_boot_is_ignored_while_a_newer_one_is_active() -> None:
    fleet = Fleet()
    assert fleet.on_life_sign("pi", "one", 5)
    assert fleet.on_life_sign("pi", "two", 1)
    for _ in range(10):
        assert not fleet.on_life_sign("pi", "one", 6)
        assert fleet.on_life_sign("pi", "two", 1)
    assert not fleet.on_status(status("one", 9, online=False), retained=False)
    assert not fleet.on_status(status("two", 0, online=False), retained=False)
    assert fleet.is_online("pi")
    assert fleet.on_status(status("two", 1, online=False), retained=False)
    assert not fleet.is_online("pi")


def test_a_doubted_boot_is_accepted_after_repeated_messages() -> None:
    fleet = Fleet()
    assert fleet.on_life_sign("pi", "living", 1)
    assert fleet.on_life_sign("pi", "long ago", 3), "its hello was on its way for long"
    tries = [fleet.on_life_sign("pi", "living", 1) for _ in range(MAX_IGNORED_OLD_BOOT_SIGNS + 1)]
    assert tries == [False] * MAX_IGNORED_OLD_BOOT_SIGNS + [True]
    assert fleet.on_life_sign("pi", "living", 1)


def test_a_retained_online_status_does_not_mark_the_edge_online() -> None:
    fleet = Fleet()
    assert fleet.on_status(status("one", 1, online=True), retained=True)
    assert not fleet.is_online("pi")
    assert fleet.on_status(status("one", 1, online=True), retained=False)
    assert fleet.is_online("pi")


def test_an_edge_silent_for_three_heartbeats_is_offline() -> None:
    now = 0.0
    fleet = Fleet(heartbeat_s=30, clock=lambda: now)
    fleet.on_heartbeat("pi", Heartbeat("one", 1))
    now = 89.0
    fleet.mark_silent_offline()
    assert fleet.is_online("pi")
    now = 91.0
    fleet.mark_silent_offline()
    assert not fleet.is_online("pi")
    assert fleet.on_heartbeat("pi", Heartbeat("one", 1))
    assert fleet.is_online("pi")


def test_only_edges_that_may_be_silent_are_looked_at() -> None:
    now = 0.0
    fleet = Fleet(heartbeat_s=30, clock=lambda: now)
    names = [f"edge-{n:03}" for n in range(200)]
    for name in names:
        fleet.on_life_sign(name, "one", 1)
    now = 70.0
    for name in names[1:]:
        fleet.on_heartbeat(name, Heartbeat("one", 1))
    looked: list[str] = []

    def silent_at(member: Member) -> float:
        looked.append(member.agent_id)
        return Fleet.silent_at(fleet, member)

    fleet.silent_at = silent_at
    fleet.mark_silent_offline()
    assert looked == []
    now = 91.0
    fleet.mark_silent_offline()
    assert not fleet.is_online(names[0])
    assert all(fleet.is_online(name) for name in names[1:])
    looked.clear()
    fleet.mark_silent_offline()
    assert looked == [], "each is looked at again when it may be silent"


@pytest.mark.parametrize(
    ("said", "gone"),
    [(600.0, 1_800.0), (5.0, 90.0), (None, 90.0), (-1.0, 90.0), (1e12, 10_800.0), (math.nan, 90.0)],
)
def test_the_offline_timeout_follows_the_edges_own_heartbeat_interval(
    said: float | None, gone: float
) -> None:
    now = 0.0
    fleet = Fleet(heartbeat_s=30, clock=lambda: now)
    fleet.on_life_sign("pi", "one", 1)
    fleet.set_heartbeat_interval("pi", said)
    now = gone
    fleet.mark_silent_offline()
    assert fleet.is_online("pi")
    now = gone + 1
    fleet.mark_silent_offline()
    assert not fleet.is_online("pi")


async def test_gather_waits_for_known_edges_up_to_its_timeout(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk") as here:
        await here.devices["desk"].stop()
        await here.restart()
        async with asyncio.timeout(30):
            await here.orchestrator.wait_for_all(["pi"], 1_000)
            assert here.orchestrator.fleet.member("pi").is_known
            await here.orchestrator.wait_for_all(["pi", "desk"], 0.05)
        assert not here.orchestrator.fleet.is_online("desk")


async def test_a_hello_carries_the_heartbeat_interval(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, heartbeat_s=1_200.0)
    async with open_fleet(tmp_path, limits=limits) as here:
        assert here.orchestrator.fleet.member("pi").heartbeat_interval_s == 1_200.0


@pytest.mark.parametrize("skew", [DAYS, -DAYS])
async def test_fault_14_a_clock_that_is_days_off_changes_no_deadline(
    tmp_path: Path, skew: float
) -> None:
    async with open_fleet(tmp_path, start=False) as here, BrokerListener(here.broker) as ear:
        here.pi.clock = OrchestratorClock(wall=lambda: time.time() + skew)
        await here.pi.start()
        await here.wait_online()
        assert (await here.run_tool("mark", text="a")).text == "marked a"
        late = tool_command("mark", text="late", expires_at=time.time() - 1)
        here.publish_command(late)
        await until(lambda: bool(ear.results_of(late.request_id)))
        assert ear.results_of(late.request_id)[0]["error_type"] == "expired"
        assert here.marks.made == ["a"]
        figures = (await here.orchestrator.query("pi", "get_metrics")).result
        assert figures["clock_skew_s"] == pytest.approx(skew, abs=5)


@pytest.mark.parametrize("skew", [DAYS, -DAYS])
async def test_fault_14_a_command_waits_until_the_edge_knows_the_orchestrators_time(
    tmp_path: Path, skew: float
) -> None:
    async with open_fleet(tmp_path, start=False) as here, BrokerListener(here.broker) as ear:
        here.pi.clock = OrchestratorClock(wall=lambda: time.time() + skew)
        lost = here.link.drop_next('"command":"welcome"', count=1)
        await here.pi.start()
        await until(lambda: here.orchestrator.fleet.is_online("pi"))
        late = tool_command("mark", text="late", expires_at=time.time() - 1)
        good = tool_command("mark", text="good", expires_at=time.time() + 60)
        here.publish_command(late)
        here.publish_command(good)
        await until(
            lambda: bool(ear.results_of(late.request_id)) and bool(ear.results_of(good.request_id))
        )
        assert lost() == 1
        assert ear.results_of(late.request_id)[0]["error_type"] == "expired"
        assert here.marks.made == ["good"]


async def test_fault_14_an_edge_without_an_orchestrator_uses_its_own_clock(
    tmp_path: Path,
) -> None:
    limits = msgspec.structs.replace(QUICK, hello_retry_delay_s=0.02)
    async with open_fleet(tmp_path, limits=limits, start=False) as here:
        await here.close()
        await here.pi.start()
        await until(lambda: here.pi.link.is_up)
        async with BrokerListener(here.broker) as ear:
            late = tool_command("mark", text="late", expires_at=time.time() - 1)
            good = tool_command("mark", text="good", expires_at=time.time() + 60)
            here.publish_command(late)
            here.publish_command(good)
            await until(
                lambda: (
                    bool(ear.results_of(late.request_id)) and bool(ear.results_of(good.request_id))
                )
            )
        assert here.marks.made == ["good"]


def test_fault_14_the_orchestrators_time_is_monotonic_when_its_clock_is_set() -> None:
    wall, ticks = 1000.0, 50.0
    clock = monotonic_wall_clock(lambda: wall, lambda: ticks)
    assert clock() == 1000.0
    wall, ticks = 1000.0 - DAYS, 55.0
    assert clock() == 1005.0
    assert monotonic_clock() <= monotonic_clock()


async def test_fault_14_an_edges_orchestrator_time_is_monotonic_when_its_clock_jumps() -> None:
    wall, ticks = 5.0, 50.0
    clock = OrchestratorClock(lambda: wall, lambda: ticks)
    assert clock.now() == 5.0
    clock.set(1000.0)
    wall, ticks = 5.0 + DAYS, 60.0
    assert clock.now() == 1010.0
    assert clock.skew == pytest.approx(5.0 + DAYS - 1010.0)


async def test_fault_14_a_slow_time_sync_does_not_replace_a_more_precise_one() -> None:
    ticks = 50.0
    clock = OrchestratorClock(lambda: 5.0, lambda: ticks)
    clock.set(1000.0, waited=12.0)
    assert (clock.now(), clock.loose) == (1012.0, 12.0)
    clock.set(1000.0, waited=0.1)
    assert (clock.now(), clock.loose) == (1000.1, 0.1)
    ticks = 62.0
    clock.set(1012.0, waited=12.0)  # another one answers what was asked when it was standing still
    assert (clock.now(), clock.loose) == (1012.1, 0.1)
    for moved in (2000.0, 500.0):  # whoever sets the time has set it anew
        clock.set(moved, waited=12.0)
        assert clock.now() == moved + 12.0


async def test_fault_14_an_edge_repeats_its_hello_once_after_a_slow_time_sync(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        edge = here.pi.edge
        assert edge is not None
        await until(lambda: edge.is_welcomed)

        def hellos() -> int:
            return sum(one["report_type"] == "hello" for one in ear.reports())

        before = hellos()
        edge.clock.loose = 0.0
        boot = edge.parts.identity.boot_id
        for _ in range(3):
            # As from an orchestrator that stood still for twelve seconds, and is an hour ahead.
            now = time.time() + 3_600
            edge.on_welcome(Welcome(boot, edge.connection, now, monotonic_clock() - 12))
        assert edge.clock.loose == pytest.approx(12, abs=1)
        await until(lambda: edge.clock.loose < 1)
        assert hellos() == before + 1
        assert edge.clock.now() == pytest.approx(time.time(), abs=5)


@pytest.mark.slow
async def test_fault_22_a_hundred_edges_reconnecting_at_once_are_all_welcomed(
    tmp_path: Path,
) -> None:
    names = [f"edge-{n}" for n in range(100)]
    async with open_fleet(tmp_path, *names) as here:
        here.broker.down()
        await until(lambda: not any(device.link.is_up for device in here.devices.values()))
        asked = [here.start_tool("mark", name, text=name, queue=30) for name in names]
        here.broker.up()
        assert [(await task).error for task in asked] == [None] * 100
        edges = [device.edge for device in here.devices.values()]
        await until(lambda: all(edge is not None and edge.is_welcomed for edge in edges), 15)
        assert sorted(here.marks.made) == sorted(names)
        assert not here.orchestrator.report_receiver.counts["too much at once"]


async def test_accepted_calls_of_an_edge_that_lost_its_journal_are_not_repeated(
    tmp_path: Path,
) -> None:
    async with open_fleet(tmp_path) as here:
        request_id = new_id()
        held = here.start_tool("hold", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        await here.pi.crash()
        here.pi.lose_journal()
        queued = here.start_tool("mark", text="never sent")
        await here.pi.start()
        assert (await held).error is ErrorKind.UNKNOWN
        assert (await queued).text == "marked never sent"
        assert here.marks.made == ["a", "never sent"]


async def test_an_edge_with_an_unsupported_protocol_version_is_not_online(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here:
        hello = Hello("boot", 1, v_min=7, v_max=9)
        payload = {"agent_id": "new", "agent_type": "", "report_type": "hello"}
        message = {**payload, "payload": msgspec.to_builtins(hello)}
        here.publish_as_edge(TopicKind.REPORTS, msgspec.json.encode(message), "new")
        await until(lambda: here.orchestrator.report_receiver.counts["another version"] == 1)
        member = here.orchestrator.fleet.find("new")
        assert member is not None and not member.online
        assert "7 to 9" in member.problem


async def test_a_long_call_sends_progress_and_a_silent_one_is_queried(
    tmp_path: Path,
) -> None:
    limits = msgspec.structs.replace(QUICK, progress_delay_s=0.1, progress_interval_s=0.05)
    async with open_fleet(tmp_path, limits=limits, silence=1.0) as here:
        queues = here.orchestrator.requests.edge_queues
        request_id = new_id()
        asked = here.start_tool("hold", text="a", request_id=request_id)
        await here.wait_for_state(request_id, "accepted")
        await asyncio.sleep(1.3)  # longer than the silence that counts
        assert queues.lost("pi") == []
        here.pi.link.fault = lambda topic, payload: Fault.DROP
        await until(lambda: queues.lost("pi") == [request_id])
        here.pi.link.drop_next("nothing")
        await until(lambda: queues.lost("pi") == [], say="it was asked for, and is there")
        here.marks.gate.set()
        assert (await asked).text == "held a"
        assert here.marks.made == ["a"]


@pytest.mark.parametrize("stale", ["boot", "connection"])
async def test_a_welcome_for_an_earlier_hello_is_ignored(tmp_path: Path, stale: str) -> None:
    async with open_fleet(tmp_path) as here:
        held = here.start_tool("hold", text="a")
        await here.marks.waiting.wait()
        edge = here.pi.edge
        assert edge is not None
        boot, counter = edge.parts.identity.boot_id, edge.connection
        old = ("another", counter) if stale == "boot" else (boot, counter - 1)
        running = [live.request_id for live in edge.calls.live]
        welcome = Welcome(*old, now=0.0, cancels=running)
        here.publish_command(Command("welcome", as_payload(welcome)))
        await until(lambda: edge.counts["stale welcome"] == 1)
        assert abs(edge.clock.now() - time.time()) < 60, "nor does it set the clock"
        here.marks.gate.set()
        assert (await held).text == "held a"


async def test_an_edge_whose_advert_was_lost_is_asked_for_its_tools(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, heartbeat_s=0.3)
    async with open_fleet(tmp_path, limits=limits, start=False) as here:
        lost = here.pi.link.drop_next('"capabilities":', count=10**6)
        await here.pi.start()
        await until(lambda: lost() >= 1)
        member = here.orchestrator.fleet.member("pi")
        await until(lambda: "mark" in member.tools.names, say="its tools are known")
        assert not member.advertised
        assert here.orchestrator.report_receiver.counts["advert missed"] >= 1
