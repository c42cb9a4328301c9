"""The book of receipts: what is checked, what is noticed, what is kept and handed out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from evoclaw import verify
from evoclaw.core.labels import CLEAN, Principal
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, label_of
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.call_steps import SignReceipt
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.receipts.archive import ReceiptArchive
from evoclaw.orchestrator.receipts.signer import LOCAL_AGENT_ID, LocalReceiptSigner, agent_id_of
from evoclaw.orchestrator.receipts.verifier import ReceiptBreach, ReceiptVerifier
from evoclaw.store.calls import command_tables
from evoclaw.store.calls.receipts import SCHEMA, ChainPosition, ReceiptStore, StoredReceipt
from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.migrations import MultiSchemaFormat
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.tools.define import tool
from evoclaw.transport.link import MessageProperties
from evoclaw.transport.topics import TopicKind
from evoclaw.transport.wire import Command, Report, ReportType
from evoclaw.trust.receipts import DeviceKey, Receipt, SignedReceipt, read_receipt
from tests.edge.test_receipts import KEY, broken, sign
from tests.support.fleet import Fault, FleetHarness, new_id, open_fleet
from tests.support.waiting import until

OTHER = DeviceKey(bytes(32))


@dataclass
class Kit:
    """A fleet whose orchestrator has a book."""

    here: FleetHarness
    book: ReceiptVerifier
    breaches: list[ReceiptBreach]

    @property
    def store(self) -> ReceiptStore:
        return self.book.store

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.breaches]

    async def kept(self) -> list[StoredReceipt]:
        await self.book.close()
        return await self.store.list_receipts()

    async def ask(self, name: str = "mark", agent_id: str = "pi", **given: JSON) -> ToolResult:
        return await self.here.run_tool(name, agent_id, **given)


@asynccontextmanager
async def kit(
    folder: Path, *agents: str, required: bool = False, keys: bool = True, **settings: JSON
) -> AsyncGenerator[Kit]:
    breaches: list[ReceiptBreach] = []
    async with (
        await ReceiptStore.open(folder / "receipts.db", durable=False) as store,
        open_fleet(folder, *agents, start=False, **settings) as here,
    ):
        book = ReceiptVerifier(store, required=required, on_breach=breaches.append)
        here.orchestrator.report_receiver.receipts = book
        for n, device in enumerate(here.devices.values()):
            await device.start()
            if keys:
                sign(device, KEY if n == 0 else OTHER)
        await here.wait_online(*here.devices)
        yield Kit(here, book, breaches)
        await book.close()


def forged(kit: Kit, change: Callable[[dict[str, JSON]], None]) -> None:
    """Have somebody on the way change what the device reports."""
    link = kit.here.pi.link
    plain = link.publish

    async def publish(
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: MessageProperties | None = None,
    ) -> None:
        if b'"exit_code"' in payload:
            report = msgspec.json.decode(payload)
            change(report["payload"])
            payload = msgspec.json.encode(report)
        await plain(topic, payload, retain=retain, properties=properties)

    link.publish = publish


async def test_a_valid_receipt_is_stored_and_reported_with_the_result(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        request_id = new_id()
        result = await found.ask(text="a", request_id=request_id)
        assert result.error is None
        said = result.details["receipt"]
        assert (said["state"], said["agent"], said["trust"]) == ("valid", "pi", "first use")
        assert (said["request_id"], said["status"]) == (request_id, "success")
        (kept,) = await found.kept()
        assert (kept.hash, kept.flaw) == (said["hash"], "")
        assert said["id"] == f"r1-{kept.hash[:8]}"
        assert found.kinds == ["first_use"], "an operator is told that the key was taken on trust"


async def test_a_key_pinned_at_pairing_is_not_reported_as_first_use(tmp_path: Path) -> None:
    async with kit(tmp_path) as found:
        await found.book.pin("pi", KEY.public_key)
        result = await found.ask(text="a")
        assert result.details["receipt"]["trust"] == "pairing"
        assert found.kinds == []


async def test_a_receipt_with_an_unpinned_key_is_a_breach_but_the_result_is_returned(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        await found.book.pin("pi", OTHER.public_key)
        result = await found.ask(text="a")
        assert (result.error, result.text) == (None, "marked a")
        assert result.details["receipt"]["state"] == "invalid"
        assert "a key other than" in result.details["receipt"]["problem"]
        assert found.kinds == ["other_key"]


async def test_a_result_with_an_invalid_receipt_is_refused_if_receipts_are_required(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path, required=True) as found:
        await found.book.pin("pi", OTHER.public_key)
        result = await found.ask(text="a")
        assert result.error is ErrorKind.UNKNOWN
        assert "was refused" in result.text
        assert "may have happened" in result.text
        assert "marked" not in result.text
        assert result.details["receipt"]["state"] == "invalid"


async def test_an_edge_without_a_key_is_accepted_unless_receipts_are_required(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path / "a", keys=False) as found:
        result = await found.ask(text="a")
        assert (result.error, result.details["receipt"]["state"]) == (None, "absent")
        assert found.breaches == []
    async with kit(tmp_path / "b", keys=False, required=True) as found:
        assert (await found.ask(text="a")).error is ErrorKind.UNKNOWN
        assert found.kinds == ["absent"]
        assert (await found.here.orchestrator.query("pi", "ping")).result["pong"] is True


CHANGES: dict[str, Callable[[dict[str, JSON]], None]] = {
    "other_result": lambda payload: payload.update(result="something else"),
    "malformed": lambda payload: payload["receipt"].update(body="{}"),
    "bad_signature": lambda payload: payload["receipt"].update(signature="A" * 86),
    "absent": lambda payload: payload.pop("receipt"),
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_report_altered_in_transit_is_detected(tmp_path: Path, kind: str) -> None:
    async with kit(tmp_path, required=True) as found:
        forged(found, CHANGES[kind])
        result = await found.ask(text="a")
        assert result.error is ErrorKind.UNKNOWN
        assert found.kinds[-1] == kind


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_result_that_its_device_did_not_sign_is_labelled_untrusted_and_private(
    tmp_path: Path, kind: str
) -> None:
    async with kit(tmp_path) as found:
        await found.book.pin("pi", KEY.public_key)
        assert label_of(await found.ask(text="a")) == CLEAN
        forged(found, CHANGES[kind])
        label = label_of(await found.ask(text="b"))
        assert (label.untrusted, label.private, label.sources) == (True, True, ("pi",))
        assert found.kinds[-1] == kind, "and the operator is told"


async def test_an_edge_cannot_forge_the_orchestrators_receipt_check(
    tmp_path: Path,
) -> None:
    lie = {"state": "valid", "id": "r9-00000000"}

    def say(payload: dict[str, JSON]) -> None:
        del payload["receipt"]
        payload |= {"checked": lie, "details": {"receipt": lie, "receipts": [lie]}}

    async with kit(tmp_path) as found:
        forged(found, say)
        said = (await found.ask(text="a")).details
        assert said["receipt"]["state"] == "absent"
        assert "receipts" not in said
    async with open_fleet(tmp_path / "plain") as here:
        forged(Kit(here, None, []), lambda payload: payload.update(checked=lie))  # type: ignore[arg-type]
        assert "receipt" not in (await here.run_tool("mark", text="a")).details


async def test_a_receipt_reused_for_another_request_is_rejected_as_a_replay(tmp_path: Path) -> None:
    async with kit(tmp_path) as found:
        first: list[JSON] = []

        def again(payload: dict[str, JSON]) -> None:
            first.append(payload["receipt"])
            payload["receipt"] = first[0]

        forged(found, again)
        assert (await found.ask(text="a")).details["receipt"]["state"] == "valid"
        result = await found.ask(text="b")
        assert result.details["receipt"]["state"] == "invalid"
        assert "used before" in result.details["receipt"]["problem"]
        assert found.kinds[-1] == "other_request"
        flawed = [one for one in await found.kept() if one.flaw]
        assert [one.flaw for one in flawed] == ["other_request"], "kept as evidence of that"


async def test_a_receipt_of_another_edge_is_rejected(tmp_path: Path) -> None:
    async with kit(tmp_path, "pi", "hub") as found:
        taken: list[JSON] = []
        await found.ask(agent_id="hub", text="a")
        (kept,) = await found.kept()
        taken.append({"body": kept.body, "signature": kept.signature})
        forged(found, lambda payload: payload.update(receipt=taken[0]))
        result = await found.ask(text="b")
        assert result.details["receipt"]["state"] == "invalid"
        assert found.kinds[-1] == "other_agent"


@pytest.mark.parametrize("from_store", [False, True])
async def test_a_receipt_for_different_arguments_is_rejected(
    tmp_path: Path, from_store: bool
) -> None:
    """A device that did something else and signs that it did."""
    async with kit(tmp_path) as found:
        request_id = new_id()
        real, requests = found.here.store.get, found.here.orchestrator.requests
        asked = requests.asked

        def pending(agent_id: str, request_id: str) -> Command | None:
            command = asked(agent_id, request_id)
            if command is None or from_store:
                return None
            payload = msgspec.json.encode(command.payload).replace(b'"a"', b'"z"')
            return msgspec.structs.replace(command, payload=msgspec.json.decode(payload))

        async def get(request_id: str) -> JSON:
            row = await real(request_id)
            if row is None:
                return None
            return msgspec.structs.replace(row, payload=row.payload.replace(b'"a"', b'"z"'))

        found.here.store.get, requests.asked = get, pending
        result = await found.ask(text="a", request_id=request_id)
        assert result.details["receipt"]["state"] == "invalid"
        assert found.kinds[-1] == "other_arguments"


async def test_a_missing_receipt_is_reported_as_a_gap_until_it_arrives(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        here = found.here
        await found.ask(text="a")
        held: list[tuple[str, bytes]] = []

        def hold(topic: str, payload: bytes) -> Fault:
            if b"marked late" not in payload:
                return Fault.NONE
            held.append((topic, payload))
            return Fault.DROP

        here.pi.link.fault = hold
        late = here.start_tool("mark", text="late")
        await until(lambda: bool(held))
        result = await found.ask(text="b")
        assert result.details["receipt"]["state"] == "valid"
        await found.book.close()
        assert found.kinds == ["first_use", "gap"]
        (chain,) = await found.store.chains()
        assert await found.store.gaps("pi", chain[1]) == [(2, 2)]
        here.pi.link.fault = lambda topic, payload: Fault.NONE
        assert (await late).details["receipt"]["state"] == "valid"
        await found.book.close()
        assert await found.store.gaps("pi", chain[1]) == []
        assert found.kinds == ["first_use", "gap"]


async def test_a_receipt_received_by_another_orchestrator_is_not_a_gap(tmp_path: Path) -> None:
    async with kit(tmp_path) as found:
        other = ReceiptVerifier(found.store, on_breach=found.breaches.append)
        await found.ask(text="a")
        reception = found.here.orchestrator.report_receiver
        for book, text in ((other, "b"), (found.book, "c"), (other, "d")):
            reception.receipts = book
            assert (await found.ask(text=text)).details["receipt"]["state"] == "valid"
        await asyncio.gather(other.close(), found.book.close())
        assert found.kinds == ["first_use"]


async def test_a_key_pinned_by_another_orchestrator_is_accepted(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        await found.ask(text="a")
        sign(found.here.devices["pi"], OTHER)
        assert (await found.ask(text="b")).details["receipt"]["state"] == "invalid"
        await ReceiptVerifier(found.store).pin("pi", OTHER.public_key)
        assert (await found.ask(text="c")).details["receipt"]["state"] == "valid"


async def test_concurrent_receipts_with_a_new_key_report_first_use_once(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        await asyncio.gather(*(found.ask(text=str(number)) for number in range(5)))
        await found.book.close()
        assert found.kinds == ["first_use"]


async def test_two_edges_sharing_a_key_and_journal_are_detected_as_a_fork(tmp_path: Path) -> None:
    """As when a card is copied: both go on from the same place."""
    async with kit(tmp_path) as found:
        here = found.here
        await found.ask(text="a")
        await here.pi.stop()
        files = {path: path.read_bytes() for path in here.folder.glob("pi.db*")}
        await here.pi.start()
        sign(here.pi)
        await here.wait_online()
        await found.ask(text="b")
        await here.pi.stop()
        for path, data in files.items():
            path.write_bytes(data)
        await here.pi.start()
        sign(here.pi)
        await here.wait_online()
        result = await found.ask(text="c")
        assert result.details["receipt"]["state"] == "invalid"
        assert "another receipt with the number 2" in result.details["receipt"]["problem"]
        assert found.kinds[-1] == "fork"


async def test_a_restarted_orchestrator_detects_a_receipt_fork(tmp_path: Path) -> None:
    async with kit(tmp_path) as found:
        await found.ask(text="a")
        (kept,) = await found.kept()
        again = ReceiptVerifier(found.store, on_breach=found.breaches.append)
        found.here.orchestrator.report_receiver.receipts = again
        await found.here.pi.stop()
        found.here.pi.lose_journal()
        await found.here.pi.start()
        sign(found.here.pi)
        await until(lambda: found.here.pi.edge is not None and found.here.pi.edge.is_welcomed)
        result = await found.ask(text="b")
        assert result.details["receipt"]["state"] == "valid"
        assert found.kinds[-1] == "new_chain", "a lost journal is another chain, and told"
        receipt, _ = read_receipt({"body": kept.body, "signature": kept.signature})
        other = KEY.sign(msgspec.structs.replace(receipt, tool="another"))
        await _tell(found, other)
        assert found.kinds[-1] in ("fork", "other_result")


async def _tell(found: Kit, signed: SignedReceipt) -> None:
    body = json.loads(signed.body)
    payload = {
        "status": "success",
        "request_id": body["request_id"],
        "receipt": {"body": signed.body, "signature": signed.signature},
    }
    report = {"agent_id": "pi", "agent_type": "", "report_type": "result", "payload": payload}
    before = len(found.breaches)
    found.here.publish_as_edge(TopicKind.REPORTS, msgspec.json.encode(report))
    await until(lambda: len(found.breaches) > before)


async def test_a_call_to_several_edges_has_one_receipt_per_edge(tmp_path: Path) -> None:
    async with kit(tmp_path, "pi", "hub") as found:
        asking = found.here.orchestrator.edge_call(frozenset({"*"}))
        (offered,) = asking.tools()
        call = found.here.call("mark")
        asked: dict[str, JSON] = {"agent_id": "*", "action": "mark", "params": {"text": "a"}}
        call = msgspec.structs.replace(call, tool=offered, arguments=asked, timeout=10)
        result = await asking.execute(call, lambda text: None)
        agents = [one["agent"] for one in result.details["receipts"]]
        assert sorted(agents) == ["hub", "pi"]


async def test_an_exported_receipt_bundle_can_be_verified_offline(tmp_path: Path) -> None:
    async with kit(tmp_path, "pi", "hub", tools=(broken,)) as found:
        await found.ask(text="a")
        await found.ask("broken", text="é\u2028")
        await found.ask(agent_id="hub", text="c")
        await found.book.close()
        lines = [line async for line in ReceiptArchive(found.store, found.here.store).bundle()]
    data = b"\n".join(msgspec.json.encode(line) for line in lines)
    said, wrong = verify.verify(verify.read_bundle(data), {"pi": "2", "hub": "1"})
    assert wrong == []
    assert sum("compared: arguments, result" in line for line in said) == 3
    for line in lines:
        if "result" in line:
            line["result"]["result"] = "something else"
    data = b"\n".join(msgspec.json.encode(line) for line in lines)
    assert len(verify.verify(verify.read_bundle(data), {})[1]) == 3


async def test_local_calls_of_all_processes_are_signed_in_one_chain(
    tmp_path: Path,
) -> None:
    @tool("shell")
    async def mark(text: str) -> str:
        """Make a mark."""
        return f"marked {text}"

    path = tmp_path / "receipts.db"
    async with (
        await ReceiptStore.open(path, durable=False) as one,
        await ReceiptStore.open(path, durable=False) as other,
    ):
        signers = [LocalReceiptSigner(KEY, store, "boot") for store in (one, other)]
        executors = [
            Pipeline([LocalExecutor([mark, broken])], [SignReceipt(each.sign)]) for each in signers
        ]
        (offered, failing) = executors[0].tools()
        calls: list[JSON] = []
        for n in range(10):
            call = msgspec.structs.replace(_call(offered, f"run.{n}.0.1"), arguments={"text": "a"})
            calls.append(executors[n % 2].execute(call, lambda text: None))
        results: list[ToolResult] = await asyncio.gather(*calls)
        assert {result.details["receipt"]["state"] for result in results} == {"valid"}
        ids = {result.details["receipt"]["id"].partition("-")[0] for result in results}
        assert ids == {f"r{n}" for n in range(1, 11)}
        lines = [line async for line in ReceiptArchive(one).bundle()]
        assert lines[0]["agent_id"] == LOCAL_AGENT_ID
        _, wrong = verify.verify(
            verify.read_bundle(msgspec.json.encode(lines)), {LOCAL_AGENT_ID: "10"}
        )
        assert wrong == []
        with pytest.raises(RuntimeError):
            await executors[0].execute(_call(failing, "run.11.0.1"), lambda text: None)


async def test_machines_sharing_a_store_have_their_own_receipt_chain_and_key(
    tmp_path: Path,
) -> None:
    @tool("shell")
    async def mark(text: str) -> str:
        """Make a mark."""
        return f"marked {text}"

    keys = (KEY, OTHER)
    async with await ReceiptStore.open(tmp_path / "receipts.db", durable=False) as store:
        signers = [LocalReceiptSigner(key, store, "boot", shared=True, wait=False) for key in keys]
        executors = [
            Pipeline([LocalExecutor([mark])], [SignReceipt(each.sign)]) for each in signers
        ]
        for n in range(6):
            call = _call(executors[0].tools()[0], f"run.{n}.0.1")
            call = msgspec.structs.replace(call, arguments={"text": "a"})
            result = await executors[n % 2].execute(call, lambda text: None)
            assert result.details["receipt"]["state"] == "valid"
        names = [agent_id_of(key) for key in keys]
        assert {pin.agent_id: pin.key for pin in await store.pins()} == {
            name: key.public_key for name, key in zip(names, keys, strict=True)
        }
        lines = [line async for line in ReceiptArchive(store).bundle()]
        _, wrong = verify.verify(
            verify.read_bundle(msgspec.json.encode(lines)), dict.fromkeys(names, "3")
        )
        assert wrong == []


async def test_a_retried_transaction_returns_the_receipt_that_was_stored(
    tmp_path: Path,
) -> None:
    made: list[StoredReceipt] = []

    def make(place: ChainPosition) -> tuple[StoredReceipt, ChainPosition]:
        mark = new_id()
        made.append(
            StoredReceipt(LOCAL_AGENT_ID, mark, 1, mark, "", "r", "run", "local", 1.0, "{}", "")
        )
        return made[-1], ChainPosition(mark, 1, mark)

    def fails(connection: Connection) -> None:
        raise ValueError("not this one")

    async with await ReceiptStore.open(tmp_path / "receipts.db") as store:
        # While the disk is waited for, the next ones gather; they are done together.
        first = asyncio.ensure_future(store.database.write(lambda _: None))
        await asyncio.sleep(0)
        found = await asyncio.gather(
            store.sign(make, wait=False), store.database.write(fails), first, return_exceptions=True
        )
        assert len(made) > 1 and isinstance(found[1], ValueError)
        assert [found[0]] == await store.list_receipts() == [made[-1]]


async def test_a_receipt_lost_in_a_crash_is_recovered_from_the_stored_outcome(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        await found.ask(text="a")
        (kept,) = await found.kept()
        columns = "seq, request_id, agent_id, run_id, payload, state, outcome, settled_at"
        rows = await found.here.store.database.read(
            lambda c: c.execute(f"SELECT {columns} FROM commands").fetchall()
        )
    both = MultiSchemaFormat((SCHEMA, command_tables.SCHEMA))
    async with ReceiptStore(await SqliteDatabase.open(tmp_path / "both.db", both)) as store:
        put = f"INSERT INTO commands ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        await store.database.write(lambda c: c.executemany(put, rows))
        assert len(await store.outcomes_without_receipt(0.0)) == 1
        await ReceiptVerifier(store).repair(0.0)
        assert [one.hash for one in await store.list_receipts()] == [kept.hash]
        # Who starts next has nothing to look through.
        assert await store.outcomes_without_receipt(0.0) == []


def _call(offered: Tool, request_id: str) -> Call:
    return Call("c1", offered, {"text": "a"}, request_id, 5.0)


async def test_pruning_receipts_keeps_the_last_one_of_a_chain(tmp_path: Path) -> None:
    async with kit(tmp_path) as found:
        for text in "abc":
            await found.ask(text=text)
        await found.book.close()
        assert await found.store.prune(before=1e12) == 2
        assert [one.counter for one in await found.store.list_receipts()] == [3]
        assert (await found.ask(text="d")).details["receipt"]["state"] == "valid"


async def ask_for(found: Kit, tenant: str, **given: JSON) -> ToolResult:
    """Have a call made on behalf of a tenant."""
    call = found.here.call("mark", **given)
    context = msgspec.structs.replace(call.context, principal=Principal(tenant, "bob"))
    call = msgspec.structs.replace(call, context=context)
    return await found.here.orchestrator.edge("pi").execute(call, lambda text: None)


async def test_fault_56_a_tenant_exports_only_receipts_of_its_own_calls(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        for tenant, text in (("acme", "a"), ("umbrella", "b"), ("acme", "c")):
            await ask_for(found, tenant, text=text)
        await found.kept()
        archive = ReceiptArchive(found.store, found.here.store)
        whole = [line async for line in archive.bundle()]
        assert len(whole) == 4, "who has the machine checks the whole chain"
        for tenant, texts in (("acme", ["a", "c"]), ("umbrella", ["b"]), ("never", [])):
            view = archive.of(tenant)
            lines = [line async for line in view.bundle()]
            proved = [line["arguments"]["text"] for line in lines if line["type"] == "receipt"]
            assert proved == texts and len(lines) == len(texts) + bool(texts)
            data = b"\n".join(msgspec.json.encode(line) for line in lines)
            if texts:
                assert verify.verify(verify.read_bundle(data), {}, partial=True)[1] == []
            ids = [kept.hash[:12] for kept in await found.store.list_receipts()]
            seen = [len(await view.receipts.find(id_)) for id_ in ids]
            assert sum(seen) == len(texts)


async def test_fault_56_an_edge_cannot_store_a_receipt_for_another_tenant(
    tmp_path: Path,
) -> None:
    async with kit(tmp_path) as found:
        await ask_for(found, "acme", text="a")
        (kept,) = await found.kept()
        body = json.loads(kept.body) | {"tenant": "umbrella", "counter": 2, "prev": kept.hash}
        receipt = msgspec.convert(body, Receipt)
        signed = KEY.sign(receipt)
        row = await found.here.row(kept.request_id)
        assert row.outcome is not None
        outcome = msgspec.json.decode(row.outcome)
        payload = {name: outcome[name] for name in outcome if name not in ("receipt", "checked")}
        payload["receipt"] = {"body": signed.body, "signature": signed.signature}
        report = Report("pi", "edge", ReportType.RESULT, payload)
        checked = (await found.book.inspect(report, row)).payload["checked"]
        assert checked["state"] == "invalid" and "another tenant" in checked["problem"]
        await found.book.inspect(report, None)
        await found.kept()
        assert await found.store.of("umbrella").list_receipts() == []
        assert [one.flaw for one in await found.store.of("acme").list_receipts()] == [
            "",
            "other_request",
        ]
        assert len(await found.store.of("local").list_receipts()) == 1, "nobody asked for it"


async def test_receipts_of_local_calls_belong_to_the_calling_tenant(tmp_path: Path) -> None:
    async with await ReceiptStore.open(tmp_path / "r.db", durable=False) as store:
        executor = Pipeline(
            [LocalExecutor([marks])], [SignReceipt(LocalReceiptSigner(KEY, store, "boot").sign)]
        )
        call = _call(executor.tools()[0], "run.1.0.1")
        for tenant in ("acme", "local", "acme"):
            context = msgspec.structs.replace(call.context, principal=Principal(tenant))
            ours = msgspec.structs.replace(call, context=context)
            await executor.execute(ours, lambda text: None)
        assert [one.counter for one in await store.of("acme").list_receipts()] == [1, 3]
        assert [one.counter for one in await store.of("local").list_receipts()] == [2]


@tool("shell")
async def marks(text: str) -> str:
    """Make a mark."""
    return f"marked {text}"
