"""How commands find the service, what they tell it, and what they do when it goes away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web

from evoclaw.cli.client import (
    MAX_EVENT_BYTES,
    ServerSentEvent,
    ServiceNotRunning,
    ServiceRefused,
    SseParser,
    find_service,
    open_client,
)
from evoclaw.cli.service_api import watch_records
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.events import RunFinished, StopReason
from tests.support.stub_service import TOKEN, StubRun, serve_stub, write_service_file


def env(folder: Path, **more: str) -> dict[str, str]:
    return {"EVOCLAW_HOME": str(folder / ".evoclaw"), **more}


def test_sse_events_are_parsed_the_same_at_any_chunk_boundary() -> None:
    said = (
        b": hello\r\n\r\nid: 1\r\nevent: text_delta\r\ndata: a\r\n\r\n"
        b"data: b\ndata: c\n\n: beat\n\nid: 3\nevent: x\n\nid:4\nevent:y\ndata:d\n\n"
    )
    expected = [
        ServerSentEvent("text_delta", b"a", "1"),
        ServerSentEvent("message", b"b\nc"),
        ServerSentEvent("y", b"d", "4"),
    ]
    for size in range(1, len(said) + 1):
        stream, found = SseParser(), list[ServerSentEvent]()
        for at in range(0, len(said), size):
            found += stream.feed(said[at : at + size])
        assert found == expected, f"in pieces of {size}"


def test_an_sse_event_larger_than_the_limit_is_an_error() -> None:
    stream = SseParser()
    with pytest.raises(EvoClawError, match="16 MiB"):
        for _ in range(MAX_EVENT_BYTES // 2**20 + 1):
            stream.feed(b"data: " + b"x" * 2**20 + b"\n")


async def test_the_service_file_must_be_private(tmp_path: Path) -> None:
    async with serve_stub() as fake:
        write_service_file(fake, tmp_path)
        assert find_service(env(tmp_path)).token == TOKEN
        for mode in (0o640, 0o604, 0o622):
            write_service_file(fake, tmp_path, mode=mode)
            with pytest.raises(ConfigError, match="chmod go="):
                find_service(env(tmp_path))


def test_a_missing_service_file_means_the_service_is_not_up(tmp_path: Path) -> None:
    with pytest.raises(ServiceNotRunning, match="start it with `evoclaw up`"):
        find_service(env(tmp_path))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://192.0.2.7:8433", "unencrypted"),
        ("http://localhost.example.org", "unencrypted"),
        ("ftp://127.0.0.1", "not a URL"),
        ("https://", "not a URL"),
        ("https://me:secret@example.org", "EVOCLAW_TOKEN"),
        ("https://example.org/?token=x", "EVOCLAW_TOKEN"),
        ("https://[broken", "not a URL"),
    ],
)
def test_an_insecure_or_invalid_service_url_is_refused(
    url: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        find_service(env(tmp_path, EVOCLAW_URL=url, EVOCLAW_TOKEN="secret"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1", "https://example.org"])
def test_a_loopback_or_https_url_is_accepted(url: str, tmp_path: Path) -> None:
    found = find_service(env(tmp_path, EVOCLAW_URL=url, EVOCLAW_TOKEN="secret"))
    assert (found.url, found.token) == (url, "secret")


async def test_an_error_response_is_raised_with_the_message_of_the_service(tmp_path: Path) -> None:
    async with serve_stub() as fake:
        write_service_file(fake, tmp_path)
        async with open_client(env(tmp_path)) as client:
            with pytest.raises(ServiceRefused, match="there is no such run; list them") as refused:
                await client.get("/v1/runs/none")
            assert (refused.value.status, refused.value.code) == (404, "not_found")
        async with open_client(env(tmp_path, EVOCLAW_TOKEN="wrong")) as client:
            with pytest.raises(ServiceRefused, match="evoclaw token new"):
                await client.get("/v1/runs")


async def test_a_broken_event_stream_is_resumed_without_gap_or_repetition(tmp_path: Path) -> None:
    async def script(run: StubRun) -> None:
        for number in range(20):
            run.says(str(number))
        run.ends("done")

    async with serve_stub(script) as fake:
        write_service_file(fake, tmp_path)
        fake.cut_after = [0, 1, 3, 7]
        fake.drop_after = [-1, -1, -1, -1, 2]
        async with open_client(env(tmp_path)) as client:
            run = await client.post("/v1/runs", {"message": "go"}, key="k")
            records = [record async for record in watch_records(client, run["run_id"])]
    assert [record.seq for record in records] == list(range(1, 43))
    assert fake.streams == ["", "", "1", "4", "11", "13"]
    assert isinstance(end := records[-1].event, RunFinished) and end.text == "done"


async def test_a_waiting_run_ends_the_watch_and_can_be_watched_again(tmp_path: Path) -> None:
    async def script(run: StubRun) -> None:
        run.ends("", StopReason.WAITING)
        await run.steered.get()
        run.resumes()
        run.ends("done")

    async with serve_stub(script) as fake:
        write_service_file(fake, tmp_path)
        async with open_client(env(tmp_path)) as client:
            run = await client.post("/v1/runs", {"message": "go"}, key="k")
            first = [record.seq async for record in watch_records(client, run["run_id"])]
            fake.runs[run["run_id"]].steered.put_nowait("")
            rest = [record.seq async for record in watch_records(client, run["run_id"], first[-1])]
    assert (first, rest) == ([1, 2], [3, 4])


async def test_the_token_is_not_sent_to_a_redirect_target(tmp_path: Path) -> None:
    seen: list[str] = []

    async def there(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    async def here(request: web.Request) -> web.Response:
        raise web.HTTPFound("/v1/there")

    more = [web.get("/v1/there", there), web.get("/v1/here", here)]
    async with serve_stub(more=more) as fake:
        write_service_file(fake, tmp_path)
        async with open_client(env(tmp_path)) as client:
            with pytest.raises(ServiceRefused, match="302"):
                await client.get("/v1/here")
    assert not seen


async def test_a_response_that_is_not_json_is_an_error(tmp_path: Path) -> None:

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async with serve_stub(more=[web.get("/v1/page", page)]) as fake:
        write_service_file(fake, tmp_path)
        async with open_client(env(tmp_path)) as client:
            with pytest.raises(EvoClawError, match="did not answer with JSON"):
                await client.get("/v1/page")


def test_an_invalid_service_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / ".evoclaw" / "api.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"url": 5}))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"api\.json"):
        find_service(env(tmp_path))
