"""`evoclaw up` as a process, and everything that is done to it: faults of the service itself."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest_asyncio

from evoclaw.core.messages import JSON
from tests.api.test_runs import all_events, next_event, watching
from tests.support.api_request_bodies import body_of, like
from tests.support.disks import fill, small_disk
from tests.support.processes import alive, unique_seconds
from tests.support.service import Client
from tests.support.stalled_watcher import DROPPED, StalledWatcher
from tests.support.up_process import (
    PATIENCE,
    UpProcess,
    ok,
    start_run,
    up_process,
    wait_for_state,
)
from tests.support.waiting import until

ROOM = """
[server]
requests_per_minute = 1000000
burst = 100000
watchers = 5000
watchers_per_caller = 5000

[[agents]]
id = "evoclaw"
capabilities = ["*"]
autonomy = "full"

[[agents]]
id = "careful"
capabilities = ["*"]
"""
GREET = """
[[steps]]
name = "sure"
kind = "approval"
message = "Go on?"
"""
NUMBER = re.compile(rb"^id: (\d+)$", re.MULTILINE)


@pytest_asyncio.fixture(name="up")
async def _up(tmp_path: Path) -> AsyncGenerator[UpProcess]:
    async with up_process(tmp_path) as up:
        up.configure(ROOM)
        yield up
        assert "Traceback" not in up.output(), up.output()


async def test_fault_20_a_cancel_or_a_chat_disconnect_leaves_no_process_and_no_spending(
    up: UpProcess,
) -> None:
    """Watching is no reason to go on, and no longer watching none to stop; a chat's caller is."""
    owner = await up.start(edge=True)
    await up.wait_online(owner)
    watched, chatted = unique_seconds(), unique_seconds()

    run_id = await start_run(owner, _sleeps(watched))
    async with watching(owner, f"/v1/runs/{run_id}/events") as stream:
        assert await next_event(stream) is not None
        await until(lambda: bool(alive(watched)), PATIENCE, "the command runs")
    assert ok(await owner.get(f"/v1/runs/{run_id}"))["state"] == "running"
    assert alive(watched)
    ok(await owner.post(f"/v1/runs/{run_id}/cancel"))
    assert (await wait_for_state(owner, run_id))["stop"] == "cancelled"
    await until(lambda: not alive(watched), PATIENCE, "no process is left")

    body = {
        "model": "evoclaw",
        "stream": True,
        "messages": [{"role": "user", "content": _sleeps(chatted)}],
    }
    url = f"{owner.url}/v1/chat/completions"
    async with owner.http.post(url, json=body, headers=owner.headers()) as response:
        assert response.status == 200
        await until(lambda: bool(alive(chatted)), PATIENCE, "the command runs")
    await until(lambda: not alive(chatted), PATIENCE, "no process is left of who hung up either")
    (run,) = [one for one in await _runs(owner) if chatted in one["asked"]]
    assert (await wait_for_state(owner, run["run_id"]))["stop"] == "cancelled"
    # One more run from its beginning to its end: whatever was still to be asked would be by now.
    await wait_for_state(owner, await start_run(owner, "say all quiet"))
    assert [up.models.count(_sleeps(one)) for one in (watched, chatted)] == [1, 1]


def _sleeps(mark: str) -> str:
    return f"call bash {json.dumps({'command': f'sleep {mark}'})}\nsay it slept"


async def _runs(client: Client) -> list[JSON]:
    return list(ok(await client.get("/v1/runs?limit=100"))["items"])


async def test_fault_21_stalled_watchers_use_little_memory_are_dropped_and_miss_nothing(
    up: UpProcess,
) -> None:
    owner = await up.start()
    await wait_for_state(owner, await start_run(owner, "words 100"))
    before, words = up.memory_mb(), 20_000
    run_id = await start_run(owner, "wait open 10")
    await asyncio.wait_for(up.models.held["open"].wait(), PATIENCE)
    sleepers = [StalledWatcher(owner.url, owner.token, run_id) for _ in range(100)]
    await _watched_by(owner, 100)
    ok(await owner.post(f"/v1/runs/{run_id}/messages", {"message": f"words {words}"}))
    up.models.gates["open"].set()
    assert (await wait_for_state(owner, run_id))["stop"] == "completed"
    assert up.memory_mb() - before < 100, "a watcher is a place in what was said, not a copy of it"
    path = f"/v1/runs/{run_id}/events"
    whole = [int(event.id) for event in await all_events(owner, path)]
    assert len(whole) > words
    for number, sleeper in enumerate(sleepers):
        told = await asyncio.to_thread(sleeper.read_all)
        dropped = DROPPED.search(told)
        assert dropped is not None, told[-500:]
        seen = [int(found) for found in NUMBER.findall(told)]
        assert seen[-1] == int(dropped[1])
        assert seen == whole[: len(seen)]
        if number < 3:
            rest = await all_events(owner, path, last_event_id=dropped[1].decode())
            assert seen + [int(event.id) for event in rest] == whole
    await _watched_by(owner, 0)


async def _watched_by(owner: Client, count: int) -> None:
    async def so() -> bool:
        figures = (await owner.get("/metrics")).body.decode()
        return f"evoclaw_http_watchers {count}\n" in figures

    await until(so, PATIENCE, f"{count} watch")


async def test_fault_26_a_full_disk_refuses_new_runs_until_space_is_freed(
    up: UpProcess,
) -> None:
    up.home.joinpath("evoclaw.toml").unlink()
    up.home.rmdir()
    with small_disk(up.home, "64m"):
        up.home.chmod(0o700)
        up.configure(ROOM)
        owner = await up.start()
        kept = await start_run(owner, "say kept")
        await wait_for_state(owner, kept)
        held = await start_run(owner, "wait full 4")
        await asyncio.wait_for(up.models.held["full"].wait(), PATIENCE)
        filler = fill(up.home)
        refused = await owner.post("/v1/runs", {"message": "say no room"})
        assert (refused.status, refused.code) == (503, "store"), refused.body
        assert "is full" in str(refused.json["error"]["message"])
        assert int(refused.headers["retry-after"]) > 0
        assert (await owner.get("/health/live")).status == 200
        ready = await owner.get("/health/ready")
        assert (ready.status, ready.json["parts"]["store"]) == (503, "failed")
        assert ok(await owner.get(f"/v1/runs/{kept}"))["text"] == "kept", "what is kept can be read"
        up.models.gates["full"].set()
        await up.wait_for_output(f"run {held} suspended")
        assert (await owner.get("/health/live")).status == 200
        filler.unlink()

        async def begins() -> bool:
            return (await owner.post("/v1/runs", {"message": "say room"})).status == 201

        await until(begins, PATIENCE, "runs are begun again")
        view = await wait_for_state(owner, held)
        assert view["stop"] == "completed", view
        assert up.models.count("say no room") == 0
        await up.kill()
        owner = await up.start()
        assert ok(await owner.get(f"/v1/runs/{kept}"))["text"] == "kept"
        assert await up.stop() == 0


async def test_fault_27_a_damaged_store_is_reported_and_never_recreated(up: UpProcess) -> None:
    owner = await up.start()
    runs = [await start_run(owner, f"say number {number}\n" + "x" * 50_000) for number in range(3)]
    for run_id in runs:
        await wait_for_state(owner, run_id)
    assert await up.stop() == 0
    file = up.home / "evoclaw.db"
    whole = file.read_bytes()
    page = int.from_bytes(whole[16:18], "big")
    damages = {
        "its head": [0],
        "the middle of it": [page * (len(whole) // page // 2)],
        "many of its pages": list(range(page, len(whole), page)),
    }
    for what, places in damages.items():
        damaged = bytearray(whole)
        for place in places:
            damaged[place : place + 8] = bytes(byte ^ 0x55 for byte in damaged[place : place + 8])
        file.write_bytes(damaged)
        up.log.write_bytes(b"")
        before = {one.name for one in up.home.iterdir()}
        await up.launch()
        assert await up.wait_exit() != 0, what
        words = up.output()
        assert str(file) in words and "damaged" in words, words
        assert file.read_bytes() == bytes(damaged), "it is left as it was found"
        set_aside = {one.name for one in up.home.iterdir()} - before
        assert not {one for one in set_aside if "damaged" in one}, set_aside
        assert not (up.home / "api.json").exists()
    file.write_bytes(whole)
    owner = await up.start()
    assert ok(await owner.get(f"/v1/runs/{runs[-1]}"))["text"] == "number 2"


async def test_fault_56_ids_of_another_tenant_are_not_found_on_every_route(
    up: UpProcess,
) -> None:
    (up.home / "workflows").mkdir()
    (up.home / "workflows" / "greet.toml").write_text(GREET)
    owner = await up.start()
    ann, bob = [await _tenant(owner, name) for name in ("a", "b")]
    asks = json.dumps({"question": "Which?"})
    run = ok(await ann.post("/v1/runs", {"message": f"call question {asks}\nsay thanks"}))
    await wait_for_state(ann, run["run_id"], "waiting")
    flow = ok(await ann.post("/v1/workflows/greet/runs", {"inputs": {}}))
    made = ok(await ann.post("/v1/tokens", {"name": "x", "scopes": ["runs:read"]}))
    ids = {
        "run_id": run["run_id"],
        "session_id": run["session_id"],
        "workflow_id": flow["id"],
        "token_id": made["id"],
    }
    tried = 0
    for path, methods in ok(await bob.get("/openapi.json"))["paths"].items():
        names = re.findall(r"{(\w+)}", path)
        if not names or not set(names) <= set(ids):
            continue
        for method, said in methods.items():
            body = body_of(said["operationId"]) if method in ("post", "patch", "put") else None
            real = path.format(**ids)
            invented = path.format(**{name: like(ids[name]) for name in names})
            found = await bob.ask(method.upper(), real, body)
            other = await bob.ask(method.upper(), invented, body)
            assert found.status == 404, (method, path, found.body)
            assert found.body == other.body, (method, path)
            tried += 1
    assert tried >= 15
    slow = await _timed(bob, f"/v1/runs/{ids['run_id']}", f"/v1/runs/{like(ids['run_id'])}")
    assert max(slow) < 2 * min(slow), f"a guess can be told from a miss by the clock: {slow}"
    tried_by_bob = json.dumps(ok(await bob.get("/v1/audit?limit=500"))["items"])
    assert ids["run_id"] in tried_by_bob, "it is on record that somebody tried"
    assert ok(await ann.get(f"/v1/runs/{ids['run_id']}"))["state"] == "waiting"


async def _tenant(owner: Client, name: str) -> Client:
    wanted = {"name": name, "scopes": ["*"], "tenant": name, "user": name}
    made = ok(await owner.post("/v1/tokens", wanted))
    return Client(owner.http, owner.url, made["token"])


async def _timed(client: Client, *paths: str) -> Sequence[float]:
    """How long each takes, asked in turn so that whatever else goes on hits both."""
    took: dict[str, list[float]] = {path: [] for path in paths}
    for _ in range(200):
        for path in paths:
            began = time.perf_counter()
            await client.get(path)
            took[path].append(time.perf_counter() - began)
    return [median(found) for found in took.values()]


async def test_fault_64_hostile_http_requests_do_not_harm_the_service(
    up: UpProcess,
) -> None:
    """The shapes themselves are in tests/api/test_middleware.py; these run a real process."""
    owner = await up.start()
    await wait_for_state(owner, await start_run(owner, "say warm"))
    before = up.memory_mb()
    piece = b"x" * 65_536
    declared = _request(owner, "POST /v1/runs", "Content-Length: 104857600")
    endless = _request(owner, "POST /v1/runs", "Transfer-Encoding: chunked")
    both = _request(owner, "POST /v1/runs", "Content-Length: 5", "Transfer-Encoding: chunked")
    flood = _request(owner, "GET /v1/me", *(f"X-{number}: 1" for number in range(10_000)))
    host = _request(owner, "GET /v1/me", "Connection: close").replace(b"Host: 127", b"Host: evil")
    answers = await asyncio.gather(
        *(_thrown(owner, declared, *[piece] * 1_600) for _ in range(10)),
        *(_thrown(owner, endless, *[b"10000\r\n" + piece + b"\r\n"] * 1_600) for _ in range(10)),
        _thrown(owner, both, b"0\r\n\r\nGET /v1/tokens HTTP/1.1\r\nHost: x\r\n\r\n"),
        *(_thrown(owner, flood) for _ in range(10)),
        _thrown(owner, host),
        _thrown(owner, b"\x16\x03\x01" + b"\0" * 10_000),
    )
    for answer in answers:
        assert answer == b"" or re.match(rb"HTTP/1.1 4\d\d ", answer), answer[:200]
        assert answer.count(b"HTTP/1.1 ") <= 1
    assert up.memory_mb() - before < 100
    assert (await owner.get("/health/live")).status == 200
    assert (await wait_for_state(owner, await start_run(owner, "say still here")))[
        "text"
    ] == "still here"
    assert len(await _runs(owner)) == 2


def _request(owner: Client, line: str, *lines: str) -> bytes:
    host = urlsplit(owner.url).netloc
    head = [f"{line} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {owner.token}", *lines]
    return "\r\n".join([*head, "", ""]).encode()


async def _thrown(owner: Client, *pieces: bytes) -> bytes:
    """Say something on a socket, and read what comes back until it is closed."""
    address = urlsplit(owner.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        async with asyncio.timeout(PATIENCE):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_fault_65_an_idempotency_key_starts_one_run_even_after_a_kill(up: UpProcess) -> None:
    owner = await up.start()
    body = {"message": "wait once 10"}

    async def ask() -> JSON:
        answer = await owner.post("/v1/runs", body, idempotency_key="only-once")
        assert answer.status in (200, 201), answer.body
        return answer.json["run_id"], answer.status

    first = await asyncio.gather(*(ask() for _ in range(50)))
    assert len({run_id for run_id, _ in first}) == 1
    assert sorted(status for _, status in first) == [200] * 49 + [201]
    await asyncio.wait_for(up.models.held["once"].wait(), PATIENCE)
    await up.kill()
    owner = await up.start()
    second = await asyncio.gather(*(ask() for _ in range(50)))
    assert {run_id for run_id, _ in second} == {run_id for run_id, _ in first}
    assert {status for _, status in second} == {200}
    other = await owner.post("/v1/runs", {"message": "say no"}, idempotency_key="only-once")
    assert (other.status, other.code) == (409, "key_reused")
    up.models.gates["once"].set()
    run_id = first[0][0]
    view = await wait_for_state(owner, run_id)
    assert (view["stop"], view["text"]) == ("completed", "".join(f"word{n} " for n in range(10)))
    assert len(await _runs(owner)) == 1
    assert up.models.count("wait once") == 2, "once before the kill, once after"


async def test_fault_65_retrying_a_key_after_a_kill_starts_no_second_run(
    up: UpProcess,
) -> None:
    """The client cannot know whether it was begun: it asks again, and that is safe."""
    owner = await up.start()
    asked = [
        asyncio.create_task(
            owner.post("/v1/runs", {"message": f"say {n}"}, idempotency_key=f"k{n}")
        )
        for n in range(40)
    ]
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    await up.kill()
    await asyncio.wait(asked)
    told = {
        n: task.result().json["run_id"] for n, task in enumerate(asked) if task.exception() is None
    }
    owner = await up.start()
    for number in range(40):
        answer = await owner.post(
            "/v1/runs", {"message": f"say {number}"}, idempotency_key=f"k{number}"
        )
        assert answer.status in (200, 201)
        if number in told:
            assert answer.json["run_id"] == told[number], "what was answered is kept"
        assert (await wait_for_state(owner, answer.json["run_id"]))["text"] == str(number)
    assert len(await _runs(owner)) == 40
