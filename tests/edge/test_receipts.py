"""A device signs how each call ended: once, in one chain, whatever dies in between."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from evoclaw import verify
from evoclaw.core.canonical_json import canonical_hash
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ports import Ports
from evoclaw.edge.assemble import assemble
from evoclaw.edge.device import EdgeIdentity
from evoclaw.edge.edge import Edge
from evoclaw.edge.receipts import Receipts
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.permissions import Permissions
from evoclaw.providers.scripted import Scripted
from evoclaw.store.calls import journal as journals
from evoclaw.store.calls.journal import CallState, Journal, JournalEntry
from evoclaw.store.calls.receipts import ChainPosition
from evoclaw.store.databases.sqlite import StoreError
from evoclaw.tools.define import tool
from evoclaw.transport.link import MAX_PAYLOAD_BYTES
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.wire import Command, read_report, tool_hash
from evoclaw.trust.receipts import DeviceKey, Receipt, read_receipt, result_hash
from tests.support.fleet import (
    EVERYTHING,
    TOLD_ONCE,
    BrokerListener,
    Device,
    FleetHarness,
    new_id,
    open_fleet,
    tool_command,
)
from tests.support.waiting import until

KEY = DeviceKey(bytes(range(32)))


@tool("shell")
async def broken(text: str) -> str:
    """Fail."""
    raise RuntimeError(text)


def sign(device: Device, key: DeviceKey = KEY) -> None:
    """Give a device that was just started its key, before it takes anything up."""
    assert device.edge is not None
    who = device.edge.parts.identity
    device.edge.reports.receipts = Receipts(key, who, device.executor)


@asynccontextmanager
async def signing(
    folder: Path, **settings: JSON
) -> AsyncGenerator[tuple[FleetHarness, BrokerListener]]:
    """One device that signs, and somebody who hears what it says."""
    async with (
        open_fleet(folder, limits=TOLD_ONCE, start=False, **settings) as here,
        BrokerListener(here.broker) as ear,
    ):
        await here.pi.start()
        sign(here.pi)
        await here.wait_online()
        yield here, ear


async def end_of(ear: BrokerListener, request_id: str) -> JSON:
    await until(lambda: bool(ear.results_of(request_id)))
    return ear.results_of(request_id)[0]


def signed(end: JSON) -> Receipt:
    found, _ = read_receipt(end["receipt"], key=KEY.public_key)
    assert found.result_sha256 == result_hash(end) == verify.result_digest(end)
    return found


async def test_a_result_carries_a_receipt_of_the_request_and_its_outcome(
    tmp_path: Path,
) -> None:
    async with signing(tmp_path) as (here, ear):
        command = tool_command("mark", text="a", epoch=3)
        here.publish_command(msgspec.structs.replace(command, tenant="acme", grant="g"))
        found = signed(await end_of(ear, command.request_id))
        assert (found.agent_id, found.key) == ("pi", KEY.public_key)
        assert (found.request_id, found.run_id) == (command.request_id, command.run_id)
        assert (found.tenant, found.epoch) == ("acme", 3)
        assert (found.tool, found.tool_hash) == ("mark", tool_hash(here.tool("mark")))
        assert found.args_sha256 == canonical_hash({"text": "a"})
        assert (found.status, found.exit_code, found.error_type) == ("success", 0, "")
        assert (found.counter, found.prev) == (1, "")
        assert found.started_at is not None
        assert found.started_at <= found.ended_at
        assert len(found.grant_sha256) == 64


async def test_receipts_form_one_chain_that_includes_failures_and_refusals(
    tmp_path: Path,
) -> None:
    async with signing(tmp_path, tools=(broken,)) as (here, ear):
        commands = [
            tool_command("mark", text="a"),
            tool_command("broken", text="b"),
            tool_command("mark", wrong=1),
            tool_command("nothing"),
            tool_command("mark", text="late", expires_at=1.0),
        ]
        receipts: list[Receipt] = []
        hashes = [""]
        for command in commands:
            here.publish_command(command)
            end = await end_of(ear, command.request_id)
            receipts.append(signed(end))
            hashes.append(read_receipt(end["receipt"])[1].hash)
        assert [one.counter for one in receipts] == [1, 2, 3, 4, 5]
        assert [one.prev for one in receipts] == hashes[:-1]
        assert len({one.chain for one in receipts}) == 1
        assert [one.error_type for one in receipts] == [
            "", "internal", "invalid_params", "not_found", "expired",
        ]  # fmt: skip
        assert receipts[4].started_at is None, "it never began"


async def test_a_denied_call_has_a_permission_denied_receipt(tmp_path: Path) -> None:
    async with signing(tmp_path, policy=Permissions(frozenset({"file_read"}))) as (here, ear):
        command = tool_command("mark", text="a")
        here.publish_command(command)
        assert signed(await end_of(ear, command.request_id)).error_type == "permission_denied"
        assert here.marks.made == []


async def test_a_call_cancelled_before_it_arrived_has_a_receipt_without_arguments(
    tmp_path: Path,
) -> None:
    async with signing(tmp_path) as (here, ear):
        request_id = new_id()
        here.publish_command(Command("cancel", {"request_id": request_id}, "cancel-1"))
        found = signed(await end_of(ear, request_id))
        assert (found.error_type, found.args_sha256, found.counter) == ("cancelled", "", 1)


async def test_a_refusal_that_is_not_journaled_is_signed_outside_the_chain(tmp_path: Path) -> None:
    async with signing(tmp_path) as (here, ear):
        command = tool_command("mark", text="a")
        here.publish_command(command)
        await end_of(ear, command.request_id)
        here.publish_command(tool_command("mark", command.request_id, text="other"))
        await until(lambda: len(ear.results_of(command.request_id)) == 2)
        found = signed(ear.results_of(command.request_id)[1])
        assert (found.counter, found.chain, found.prev) == (0, "", "")
        assert found.error_type == "conflict"
        later = tool_command("mark", text="b")
        here.publish_command(later)
        assert signed(await end_of(ear, later.request_id)).counter == 2


async def test_report_and_receipt_fit_into_one_message_for_any_result_size(
    tmp_path: Path,
) -> None:
    async with await Journal.open(tmp_path / "j.db", durable=False) as journal:
        edge = await assembled(journal)
        kinds: set[str] = set()
        for many in [10, *range(MAX_PAYLOAD_BYTES - 2400, MAX_PAYLOAD_BYTES, 60)]:
            command = tool_command("mark", run="\n" * 300)
            await journal.receive(JournalEntry(command.request_id, "run", 0, "d", b"c"))
            end: dict[str, JSON] = {
                "status": "success",
                "tool": "mark",
                "result": '"' * (many // 2),
            }
            end |= {"request_id": command.request_id, "elapsed_ms": 0.5}
            await edge.reports.finish(command, CallState.SUCCEEDED, end, 0.5)
            row = await journal.get(command.request_id)
            assert row is not None
            assert row.report is not None
            assert len(row.report) <= MAX_PAYLOAD_BYTES
            kinds.add(signed(msgspec.json.decode(row.report)["payload"]).error_type)
        assert kinds == {"", "too_large"}


async def test_a_resent_result_has_the_same_receipt(tmp_path: Path) -> None:
    async with signing(tmp_path) as (here, ear):
        command = tool_command("mark", text="a")
        here.publish_command(command)
        first = await end_of(ear, command.request_id)
        here.publish_command(command)
        await until(lambda: len(ear.results_of(command.request_id)) == 2)
        assert ear.results_of(command.request_id)[1] == first


async def test_a_restarted_edge_continues_the_chain_and_resends_the_same_receipt(
    tmp_path: Path,
) -> None:
    async with (
        open_fleet(tmp_path, limits=TOLD_ONCE, start=False) as here,
        BrokerListener(here.broker) as ear,
    ):
        here.link.unplug()  # nobody acknowledges
        await here.pi.start()
        sign(here.pi)
        await until(lambda: any(one["report_type"] == "hello" for one in ear.reports()))
        command = tool_command("mark", text="a")
        here.publish_command(command)
        first = await end_of(ear, command.request_id)
        await here.pi.crash()
        await here.pi.start()
        sign(here.pi)
        await until(lambda: len(ear.results_of(command.request_id)) == 2)
        assert ear.results_of(command.request_id)[1]["receipt"] == first["receipt"]
        other = tool_command("mark", text="b")
        here.publish_command(other)
        found = signed(await end_of(ear, other.request_id))
        assert (found.counter, found.prev) == (2, read_receipt(first["receipt"])[1].hash)


async def test_an_interrupted_call_is_signed_as_unknown_after_the_restart(
    tmp_path: Path,
) -> None:
    async with signing(tmp_path) as (here, ear):
        command = tool_command("hold", text="a")
        here.publish_command(command)
        await here.marks.waiting.wait()
        await here.pi.crash()
        await here.pi.start()
        sign(here.pi)
        found = signed(await end_of(ear, command.request_id))
        assert (found.error_type, found.started_at) == ("unknown", None)
        assert found.args_sha256 == canonical_hash({"text": "a"})


async def test_a_new_key_starts_a_new_receipt_chain(tmp_path: Path) -> None:
    async with signing(tmp_path) as (here, ear):
        command = tool_command("mark", text="a")
        here.publish_command(command)
        before = signed(await end_of(ear, command.request_id))
        await here.pi.crash()
        await here.pi.start()
        other = DeviceKey(bytes(32))
        sign(here.pi, other)
        await here.wait_online()
        command = tool_command("mark", text="b")
        here.publish_command(command)
        after, _ = read_receipt(
            (await end_of(ear, command.request_id))["receipt"], key=other.public_key
        )
        assert (after.counter, after.prev) == (1, "")
        assert after.chain != before.chain


class Flaky(Journal):
    """A journal whose disk is full for a while."""

    full = False

    async def finish(self, request_id: str, state: CallState, report: JSON) -> bool:
        if self.full:
            raise StoreError("no room")
        return await super().finish(request_id, state, report)


async def test_a_result_that_could_not_be_journaled_uses_no_receipt_number(tmp_path: Path) -> None:
    journal = await Flaky.open(tmp_path / "j.db", durable=False)
    assert isinstance(journal, Flaky)
    edge = await assembled(journal)
    reports = edge.reports
    assert reports.receipts is not None
    payload: dict[str, JSON] = {"status": "success", "tool": "mark", "request_id": "", "result": ""}
    for name in ("a", "b"):
        await journal.receive(JournalEntry(name, name, 0, "d", b"c"))
    journal.full = True
    first = Command("tool", {"tool": "mark"}, "a")
    await reports.finish(first, CallState.SUCCEEDED, {**payload, "request_id": "a"}, 1.0)
    journal.full = False
    other = Command("tool", {"tool": "mark"}, "b")
    await reports.finish(other, CallState.SUCCEEDED, {**payload, "request_id": "b"}, 1.0)
    row = await journal.get("b")
    assert row is not None
    assert row.report is not None
    assert signed(msgspec.json.decode(row.report)["payload"]).counter == 1
    await vars(type(reports))["_save"](reports)
    row = await journal.get("a")
    assert row is not None
    assert row.report is not None
    assert signed(msgspec.json.decode(row.report)["payload"]).counter == 2
    await journal.close()


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("running", [False, True])
async def test_a_new_receipt_chain_starts_if_a_power_cut_may_have_lost_a_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power_cut: bool, running: bool
) -> None:
    boot, draft = tmp_path / "boot_id", Numbered()
    boot.write_text("first\n")
    monkeypatch.setattr(journals, "KERNEL_BOOT_ID", boot)
    async with await Journal.open(tmp_path / "j.db") as journal:
        await journal.receive(JournalEntry("a", "a", 0, "d", b"c"), start="boot")
        assert await journal.finish("a", CallState.SUCCEEDED, draft)
        await journal.receive(JournalEntry("b", "b", 0, "d", b"c"), start="x" if running else None)
    if power_cut:
        boot.write_text("second\n")
    # Killed before the call ended: the new chain must be remembered.
    async with await Journal.open(tmp_path / "j.db"):
        pass
    async with await Journal.open(tmp_path / "j.db") as journal:
        assert await journal.finish("b", CallState.UNKNOWN, draft)
    starts_anew = power_cut and running
    assert draft.asked[1] == (ChainPosition() if starts_anew else ChainPosition("c", 1, "h1", "k"))


async def test_finishing_a_call_twice_uses_no_second_receipt_number(tmp_path: Path) -> None:
    async with await Journal.open(tmp_path / "j.db", durable=False) as journal:
        await journal.receive(JournalEntry("a", "a", 0, "d", b"c"))
        draft = Numbered()
        assert await journal.finish("a", CallState.SUCCEEDED, draft)
        assert not await journal.finish("a", CallState.FAILED, draft)
        assert not await journal.finish("never", CallState.FAILED, draft)
        assert draft.asked == [ChainPosition()]
        await journal.receive(JournalEntry("b", "b", 0, "d", b"c"))
        assert await journal.finish("b", CallState.FAILED, draft)
        assert draft.asked[1] == ChainPosition("c", 1, "h1", "k")


class Numbered:
    """A draft that says its number."""

    def __init__(self) -> None:
        self.asked: list[ChainPosition] = []

    def signed_after(self, place: ChainPosition) -> tuple[bytes, ChainPosition]:
        self.asked.append(place)
        n = place.counter + 1
        return f"report {n}".encode(), ChainPosition("c", n, f"h{n}", "k")


async def assembled(journal: Journal) -> Edge:
    return await assemble(
        EdgeIdentity("pi"),
        MemoryLink(MemoryBroker()),
        journal,
        Ports(Scripted(), LocalExecutor([broken]), EVERYTHING),
        key=KEY,
    )


async def test_an_edge_without_a_key_sends_no_receipts(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as here, BrokerListener(here.broker) as ear:
        command = tool_command("mark", text="a")
        here.publish_command(command)
        assert "receipt" not in await end_of(ear, command.request_id)


async def test_a_call_with_deeply_nested_arguments_is_answered_with_a_receipt(
    tmp_path: Path,
) -> None:
    async with signing(tmp_path) as (here, ear):
        deep: JSON = "x"
        for _ in range(600):
            deep = [deep]
        command = tool_command("mark", text=deep)
        here.publish_command(command)
        end = await end_of(ear, command.request_id)
        assert end["error_type"] in (ErrorKind.INVALID_PARAMS, ErrorKind.INTERNAL)
        assert signed(end).args_sha256 == "", "nobody can prove what nobody can read"


async def test_a_receipt_of_an_older_version_can_still_be_verified() -> None:
    """The format is a promise: this one was signed by an older version."""
    path = Path(__file__).parent.parent / "transport" / "golden" / "report_receipt.json"
    end = read_report("living-room-pi", path.read_bytes()).payload
    found = signed(end)
    assert found.args_sha256 == canonical_hash({"command": "vcgencmd measure_temp"})
    lines: list[JSON] = [
        {"type": "key", "agent_id": "living-room-pi", "key": KEY.public_key},
        {"type": "receipt", **end["receipt"], "result": end},
    ]
    assert verify.verify(verify.read_bundle(msgspec.json.encode(lines)), {})[1] == []
