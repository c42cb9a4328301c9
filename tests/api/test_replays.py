"""Runs that were, over HTTP: signed, played again, gone another way, compared."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from evoclaw.core.events import Record, Replied
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, TextBlock, ToolResult
from evoclaw.core.tools import Call, Context, Tool
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.orchestrator.receipts.signer import LocalReceiptSigner
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.databases.database import Connection, open_blob, seal_blob
from evoclaw.store.sessions.packed_records import pack_records, unpack_records
from evoclaw.trust.receipts import DeviceKey
from tests.api.test_runs import RUNNER, begun
from tests.support.service import Client, RunningService, running_service

WORK = (calls(("work", {"what": "a"})), calls(("work", {"what": "b"})), says("both"))


async def ended(client: Client, message: str = "go", **more: JSON) -> str:
    run_id = await begun(client, message, **more)
    await client.until(f"/v1/runs/{run_id}", "state", "ended")
    return run_id


async def stored(up: RunningService, run_id: str) -> list[Record]:
    return await up.house.talks.store.records(run_id)


async def changed(up: RunningService, run_id: str, record: Record) -> None:
    """Put another record in the place of the one with its number."""
    database = up.house.database
    find = "SELECT seq, record FROM records WHERE run_id = ? AND seq >= ? ORDER BY seq LIMIT 1"

    def work(connection: Connection) -> None:
        seq, blob = connection.execute(find, (run_id, record.seq)).fetchone()
        lists = {
            digest: open_blob(database, tools)
            for digest, tools in connection.execute("SELECT digest, tools FROM tool_lists")
        }
        row = unpack_records(open_blob(database, blob), lists)
        row = [record if one.seq == record.seq else one for one in row]
        connection.execute(
            "UPDATE records SET record = ? WHERE run_id = ? AND seq = ?",
            (seal_blob(database, pack_records(row).row), run_id, seq),
        )

    await database.write(work)


async def test_a_replayed_run_is_identical_and_runs_no_call_again(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*WORK)) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await ended(ann)
        many = len(await stored(up, run_id))
        answer = await ann.post(f"/v1/runs/{run_id}/replay")
        assert answer.status == 200, answer.body
        assert answer.json == {"same": True, "records": many, "differs_at": None, "reason": ""}
        assert up.house.ran == ["a", "b"], "nothing was done again"


async def test_a_tampered_record_is_found_by_replay(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*WORK)) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await ended(ann)
        records = await stored(up, run_id)
        place = next(i for i, one in enumerate(records) if isinstance(one.event, Replied))
        event = records[place].event
        assert isinstance(event, Replied)
        other = replace(event, reply=replace(event.reply, calls=()))
        await changed(up, run_id, replace(records[place], event=other))
        found = (await ann.post(f"/v1/runs/{run_id}/replay")).json
        assert not found["same"]
        assert found["differs_at"] == found["records"] + 1 == place + 2
        assert "does not replay" in found["reason"]


async def test_a_run_in_progress_cannot_be_replayed_but_a_waiting_one_can(tmp_path: Path) -> None:
    asks = Scripted(calls(("work", {"what": "a"})), says("done"))
    async with running_service(tmp_path, asks, rules=Autonomy(Level.SUPERVISED)) as up:
        ann = await up.client_with(*RUNNER, "approvals:read", "human")
        waits = await begun(ann)
        await ann.until(f"/v1/runs/{waits}", "state", "waiting")
        assert (await ann.post(f"/v1/runs/{waits}/replay")).json["same"]
        up.house.may_go_on.clear()
        (item,) = (await ann.get("/v1/approvals")).json["items"]
        said = await ann.post(f"/v1/approvals/{item['id']}/answer", {"decision": "once"})
        assert said.status == 200, said.body
        await ann.until(f"/v1/runs/{waits}", "state", "running")
        refused = await ann.post(f"/v1/runs/{waits}/replay")
        assert (refused.status, refused.code) == (409, "goes_on")
        up.house.may_go_on.set()
        await ann.until(f"/v1/runs/{waits}", "state", "ended")
        assert (await ann.post(f"/v1/runs/{waits}/replay")).json["same"]


async def test_replaying_a_long_run_does_not_block_other_requests(tmp_path: Path) -> None:
    script = [calls(*[("work", {"what": f"{i}"}) for i in range(20)]) for _ in range(9)]
    async with running_service(tmp_path, Scripted(*script, says("much"))) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await ended(ann)
        playing = asyncio.create_task(ann.post(f"/v1/runs/{run_id}/replay"))
        between = 0
        while not playing.done():
            await ann.get("/health/live")
            between += 1
        assert playing.result().json["same"]
        assert between >= 2


async def test_a_fork_is_a_new_run_in_a_new_session_of_the_caller(tmp_path: Path) -> None:
    model = Scripted(*WORK, says("another way"))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with(*RUNNER, "sessions:read")
        run_id = await ended(ann, "do both", title="chores")
        old = (await ann.get(f"/v1/runs/{run_id}")).json
        answer = await ann.post(f"/v1/runs/{run_id}/fork", {"turn": 2})
        assert answer.status == 201, answer.body
        new = await ann.until(f"/v1/runs/{answer.json['run_id']}", "state", "ended")
        assert new["text"] == "another way"
        assert answer.headers["location"] == f"/v1/runs/{new['run_id']}"
        assert new["session_id"] != old["session_id"]
        session = (await ann.get(f"/v1/sessions/{new['session_id']}")).json
        assert (session["owner"], session["title"]) == ("ann", "fork of do both")
        kinds = [type(one).__name__ for one in model.requests[-1].messages]
        assert kinds == ["SystemMessage", "UserMessage", "Reply", "ToolResult"]
        assert up.house.ran == ["a", "b"], "what was before the turn is not done again"
        assert (await ann.post(f"/v1/runs/{new['run_id']}/replay")).json["same"]


async def test_a_fork_can_change_the_message_and_is_idempotent_by_key(tmp_path: Path) -> None:
    model = Scripted(*WORK, says("other"))
    async with running_service(tmp_path, model) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await ended(ann, "do both")
        asked = {"turn": 1, "message": "do nothing"}
        path = f"/v1/runs/{run_id}/fork"
        first = await ann.post(path, asked, idempotency_key="k")
        again = await ann.post(path, asked, idempotency_key="k")
        assert (first.status, again.status) == (201, 200)
        assert first.json["run_id"] == again.json["run_id"]
        found = await ann.until(f"/v1/runs/{first.json['run_id']}", "state", "ended")
        assert found["asked"] == "do nothing"
        said = [one.text for one in model.requests[-1].messages]
        assert said == ["You help.", "do nothing"]


async def test_an_impossible_fork_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*WORK)) as up:
        ann, reader = await up.client_with(*RUNNER), await up.client_with("runs:read")
        run_id = await ended(ann)
        path = f"/v1/runs/{run_id}/fork"
        beyond, over = await ann.post(path, {"turn": 9}), await ann.post(path, {"turn": 4})
        assert (beyond.status, beyond.code) == (409, "cannot_fork")
        assert "choose 1 to 4" in beyond.json["error"]["message"]
        assert "message" in over.json["error"]["message"] and over.status == 409
        assert (await ann.post(path, {"turn": 0})).status == 422
        assert (await reader.post(path, {"turn": 1})).status == 403


async def test_a_waiting_call_needs_a_new_approval_in_a_fork(
    tmp_path: Path,
) -> None:
    asks = Scripted(calls(("work", {"what": "a"})))
    async with running_service(tmp_path, asks, rules=Autonomy(Level.SUPERVISED)) as up:
        ann = await up.client_with(*RUNNER, "approvals:read")
        waits = await begun(ann)
        await ann.until(f"/v1/runs/{waits}", "state", "waiting")
        fork = (await ann.post(f"/v1/runs/{waits}/fork", {"turn": 2})).json["run_id"]
        await ann.until(f"/v1/runs/{fork}", "state", "waiting")
        items = (await ann.get("/v1/approvals")).json["items"]
        assert {one["run_id"] for one in items} == {waits, fork}
        assert up.house.ran == []


async def test_two_runs_are_compared_turn_by_turn(tmp_path: Path) -> None:
    other = (WORK[0], calls(("work", {"what": "c"})), says("c instead"))
    async with running_service(tmp_path, Scripted(*WORK, *WORK, *other)) as up:
        ann = await up.client_with(*RUNNER)
        a, b, c = [await ended(ann) for _ in range(3)]
        assert (await ann.get(f"/v1/runs/{a}/compare/{b}")).json == {
            "same": True,
            "differences": [],
        }
        found = (await ann.get(f"/v1/runs/{a}/compare/{c}")).json
        assert not found["same"]
        which = {(one["turn"], one["what"]) for one in found["differences"]}
        assert which == {(0, "answer"), (2, "calls"), (2, "results"), (3, "text")}
        (answer,) = [one for one in found["differences"] if one["what"] == "answer"]
        assert (answer["a"], answer["b"]) == ("both", "c instead")


async def test_receipts_of_a_run_are_listed_and_verified(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*WORK)) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await ended(ann)
        store, signer = up.house.receipts, DeviceKey(bytes(range(32)))
        sign = LocalReceiptSigner(signer, store, "boot").sign
        tool, who = Tool("work", "", {}), Context(principal=Principal("local", "ann"))
        done = ToolResult("call_0", "work", (TextBlock("worked on a"),))
        for request_id in (f"{run_id}.1.0.1", f"{run_id}.2.0-pi.1", f"{run_id}.8.0.1"):
            call = Call("call_0", tool, {"what": "a"}, request_id, 1.0, context=who)
            await sign(call, done, 1.0, 2.0)
        items = (await ann.get(f"/v1/runs/{run_id}/receipts")).json["items"]
        assert [one["call_id"] for one in items] == ["call_0", "call_2_0", ""]
        assert [one["valid"] for one in items] == [True, True, True]
        assert [one["counter"] for one in items] == [1, 2, 3]
        assert items[0]["receipt"]["tool"] == "work"
        await store.unpin("here")
        unknown = (await ann.get(f"/v1/runs/{run_id}/receipts")).json["items"]
        assert unknown[0]["valid"] is None
        await store.pin("here", DeviceKey(bytes(32)).public_key, "pairing")
        forged = (await ann.get(f"/v1/runs/{run_id}/receipts")).json["items"]
        assert forged[0]["valid"] is False


async def test_replays_forks_and_receipts_of_other_users_are_404(tmp_path: Path) -> None:
    async with running_service(tmp_path, Scripted(*WORK)) as up:
        ann = await up.client_with(*RUNNER)
        run_id = await ended(ann)
        bob, far = (
            await up.client_with(*RUNNER, user="bob"),
            await up.client_with("*", tenant="acme"),
        )
        for who in (bob, far):
            path = f"/v1/runs/{run_id}"
            assert (await who.get(f"{path}/receipts")).status == 404
            assert (await who.post(f"{path}/replay")).status == 404
            assert (await who.post(f"{path}/fork", {"turn": 1})).status == 404
            assert (await who.get(f"{path}/compare/{run_id}")).status == 404
        admin = await up.client_with("*", user="root")
        assert (await admin.post(f"{path}/replay")).json["same"]
