"""A small HTTP server that speaks the service's routes; its runs do what a test wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import (
    ApprovalAnswered,
    CallJudged,
    Event,
    Record,
    Replied,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TextDelta,
)
from evoclaw.core.messages import Reply, user
from evoclaw.core.profile import Profile
from tests.support.command_line import Shell

TOKEN = "ec_test_secret"


@dataclass
class StubRun:
    """One run."""

    run_id: str
    session_id: str
    agent: str
    asked: str
    state: str = "running"
    stop: str | None = None
    text: str = ""
    records: list[Record] = field(default_factory=list[Record])
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    steered: asyncio.Queue[str] = field(default_factory=asyncio.Queue[str])
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Queue[Any] = field(default_factory=asyncio.Queue[Any])

    def emit(self, event: Event) -> None:
        """Let something happen."""
        seq = len(self.records) + 1
        self.records.append(Record(self.run_id, seq, 1_700_000_000.0 + seq, event))
        if isinstance(event, RunFinished):
            self.stop, self.text = str(event.stop), event.text
            self.state = "waiting" if event.stop is StopReason.WAITING else "ended"
        elif isinstance(event, RunResumed):
            self.state = "running"
        self.changed.set()

    def says(self, *pieces: str) -> None:
        """Answer in these pieces."""
        for piece in pieces:
            self.emit(TextDelta(piece))
        self.emit(Replied(Reply("".join(pieces))))

    def ends(self, text: str, stop: StopReason = StopReason.COMPLETED) -> None:
        """End."""
        self.emit(RunFinished(stop, text, turns=1))

    def resumes(self) -> None:
        """Go on after waiting."""
        self.emit(RunResumed("test/model", LoopSettings(), Profile()))

    def view(self) -> dict[str, Any]:
        found = {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "agent": self.agent,
            "state": self.state,
            "stop": self.stop,
            "asked": self.asked,
            "text": self.text,
            "began_at": 1_700_000_000.0,
        }
        return {name: value for name, value in found.items() if value}


Script = Callable[[StubRun], Awaitable[None]]


async def echo_message(run: StubRun) -> None:
    """What a run does if nothing else was written: it repeats what was asked."""
    run.says("You said ", run.asked, ".")
    run.ends(f"You said {run.asked}.")


@dataclass
class StubService:
    """What a test sees of it, and what it does on purpose."""

    scripts: list[Script] = field(default_factory=list[Script])
    url: str = ""
    runs: dict[str, StubRun] = field(default_factory=dict[str, StubRun])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    titles: dict[str, str] = field(default_factory=dict[str, str])
    approvals: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    questions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    streams: list[str] = field(default_factory=list[str])
    """The `Last-Event-ID` of every stream that was asked for."""
    cut_after: list[int] = field(default_factory=list[int])
    """After how many events each stream breaks off; those that are not named do not."""
    drop_after: list[int] = field(default_factory=list[int])
    """Likewise, but told that the watcher was too slow."""
    lost: int = 0
    """How many answers to `POST /v1/runs` get lost on their way."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def asks(
        self, run: StubRun, id_: str = "a1", tool: str = "bash", machine: str = "", **arguments: Any
    ) -> None:
        """Have a call wait for a person, as a run does that ends as waiting."""
        run.emit(CallJudged("c1", "ask", "level", "it writes"))
        run.emit(ApprovalAnswered("c1", "pending", "nobody answered yet"))
        self.approvals.append(
            {
                "id": id_,
                "standing": "waiting",
                "run_id": run.run_id,
                "tool": tool,
                "machine": machine,
                "arguments": arguments,
                "reason": "it writes",
                "covers": f"every call of {tool}",
            }
        )
        run.ends("waiting for a person", StopReason.WAITING)

    async def start(self, request: web.Request) -> web.Response:
        said = await request.json()
        key = request.headers.get("Idempotency-Key", "")
        if key not in self.keys:
            run_id = f"run{len(self.runs) + 1:08}"
            session = said.get("session_id") or f"s{len(self.runs) + 1}"
            self.titles.setdefault(session, said.get("title") or said["message"][:40])
            run = StubRun(run_id, session, said.get("agent") or "evoclaw", said["message"])
            run.emit(RunStarted("test/model", (user(run.asked),), LoopSettings(), Profile()))
            self.runs[run_id], self.keys[key] = run, run_id
            script = self.scripts.pop(0) if self.scripts else echo_message
            self.tasks.add(asyncio.create_task(_play(script, run)))
        if self.lost:
            self.lost -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(self.runs[self.keys[key]].view(), status=201)

    def run(self, request: web.Request) -> StubRun:
        found = self.runs.get(request.match_info["run_id"])
        if found is None:
            raise refused(404, "not_found", "there is no such run; list them")
        return found

    async def events(self, request: web.Request) -> web.StreamResponse:
        run = self.run(request)
        last = request.headers.get("Last-Event-ID", "")
        self.streams.append(last)
        cut = self.cut_after.pop(0) if self.cut_after else -1
        drop = self.drop_after.pop(0) if self.drop_after else -1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": still here\n\n")
        sent, at = 0, int(last or 0)
        while True:
            for record in run.records[at:]:
                if sent == cut:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if sent == drop:
                    told = json.dumps({"after": at})
                    await response.write(f"event: dropped\ndata: {told}\n\n".encode())
                    return response
                tag = type(record.event).__struct_config__.tag
                data = msgspec.json.encode(record)
                await response.write(
                    f"id: {record.seq}\nevent: {tag}\ndata: ".encode() + data + b"\n\n"
                )
                sent, at = sent + 1, record.seq
            if run.state == "ended" and run.stop is not None:
                return response
            run.changed.clear()
            await run.changed.wait()

    async def records(self, request: web.Request) -> web.Response:
        lines = [msgspec.json.encode(record) + b"\n" for record in self.run(request).records]
        return web.Response(body=b"".join(lines))

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response(self.run(request).view())

    async def list(self, request: web.Request) -> web.Response:
        state, session = request.query.get("state"), request.query.get("session_id")
        found = [
            run.view()
            for run in reversed(self.runs.values())
            if (not state or run.state == state) and (not session or run.session_id == session)
        ]
        return web.json_response({"items": found, "next": ""})

    async def cancel(self, request: web.Request) -> web.Response:
        run = self.run(request)
        was = run.state
        run.cancelled.set()
        if was == "waiting":
            run.resumes()
        return web.json_response({"cancelled": was != "ended"})

    async def steer(self, request: web.Request) -> web.Response:
        run = self.run(request)
        if run.state == "ended":
            raise refused(409, "ended", "the run has ended; begin another in its session")
        run.steered.put_nowait((await request.json())["message"])
        return web.json_response(run.view(), status=202)

    async def waiting(self, request: web.Request) -> web.Response:
        run_id = request.query.get("run_id")
        found = [one for one in self.approvals if not run_id or one["run_id"] == run_id]
        return web.json_response({"items": found})

    async def answer(self, request: web.Request) -> web.Response:
        (found,) = [one for one in self.approvals if one["id"] == request.match_info["id"]]
        found["standing"] = "once"
        self.runs[found["run_id"]].answered.put_nowait(await request.json())
        return web.json_response(found)

    async def asked(self, request: web.Request) -> web.Response:
        return web.json_response({"items": self.questions})

    async def reply(self, request: web.Request) -> web.Response:
        run = self.run(request)
        self.questions.clear()
        run.answered.put_nowait(await request.json())
        return web.json_response(run.view())

    def session(self, id_: str) -> dict[str, Any]:
        runs = [run for run in self.runs.values() if run.session_id == id_]
        return {
            "id": id_,
            "agent": "evoclaw",
            "owner": "",
            "title": self.titles[id_],
            "created_at": 1_700_000_000.0,
            "messages": 2 * len(runs),
            "last_run": runs[-1].run_id if runs else "",
            "is_open": bool(runs) and runs[-1].state != "ended",
        }

    async def sessions(self, request: web.Request) -> web.Response:
        found = [self.session(id_) for id_ in reversed(self.titles)]
        return web.json_response({"items": found, "next": ""})

    async def of_session(self, request: web.Request) -> web.Response:
        id_ = request.match_info["id"]
        if id_ not in self.titles:
            raise refused(404, "not_found", "there is no such session; list them")
        if request.method == "PATCH":
            self.titles[id_] = (await request.json())["title"]
        if request.method == "DELETE":
            del self.titles[id_]
            return web.Response(status=204)
        return web.json_response(self.session(id_))

    async def messages(self, request: web.Request) -> web.Response:
        said = [
            message
            for run in self.runs.values()
            if run.session_id == request.match_info["id"]
            for message in (
                {"role": "user", "blocks": [{"type": "text", "text": run.asked}]},
                {"role": "assistant", "text": run.text},
            )
        ]
        start = int(request.query.get("start", 0))
        items = [{"number": n, "message": one} for n, one in enumerate(said, 1)][start : start + 2]
        after = start + 2 if start + 2 < len(said) else None
        return web.json_response({"items": items, "next": after})

    async def branch(self, request: web.Request) -> web.Response:
        said = await request.json()
        made = f"{request.match_info['id']}-{said.get('at_message', 'all')}"
        self.titles[made] = said.get("title") or self.titles[request.match_info["id"]]
        return web.json_response(self.session(made), status=201)


async def _play(script: Script, run: StubRun) -> None:
    await script(run)


def refused(status: int, code: str, message: str) -> web.HTTPException:
    """A refusal, as the service words it."""
    body = json.dumps({"error": {"code": code, "message": message}})
    kind = {401: web.HTTPUnauthorized, 404: web.HTTPNotFound, 409: web.HTTPConflict}[status]
    return kind(text=body, content_type="application/json")


@web.middleware
async def _authenticate(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        raise refused(401, "unauthorized", "show a good token")
    return await handler(request)


@asynccontextmanager
async def serve_stub(
    *scripts: Script, more: Sequence[web.RouteDef] = (), middlewares: Sequence[Any] = ()
) -> AsyncGenerator[StubService]:
    """The service up on a port of its own."""
    fake = StubService(list(scripts))
    app = web.Application(middlewares=[_authenticate, *middlewares])
    app.add_routes(
        [
            *more,
            web.post("/v1/runs", fake.start),
            web.get("/v1/runs", fake.list),
            web.get("/v1/runs/{run_id}", fake.show),
            web.get("/v1/runs/{run_id}/events", fake.events),
            web.get("/v1/runs/{run_id}/records", fake.records),
            web.post("/v1/runs/{run_id}/cancel", fake.cancel),
            web.post("/v1/runs/{run_id}/messages", fake.steer),
            web.post("/v1/runs/{run_id}/answer", fake.reply),
            web.get("/v1/approvals", fake.waiting),
            web.post("/v1/approvals/{id}/answer", fake.answer),
            web.get("/v1/questions", fake.asked),
            web.get("/v1/sessions", fake.sessions),
            web.route("*", "/v1/sessions/{id}", fake.of_session),
            web.get("/v1/sessions/{id}/messages", fake.messages),
            web.post("/v1/sessions/{id}/branch", fake.branch),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        for task in fake.tasks:
            task.cancel()
        done = await asyncio.gather(*fake.tasks, return_exceptions=True)
        await runner.cleanup()
    faults = [one for one in done if isinstance(one, Exception)]
    assert not faults, faults


def write_service_file(fake: StubService, folder: Path, *, mode: int = 0o600) -> Path:
    """What `evoclaw up` leaves for its owner's commands."""
    data = folder / ".evoclaw"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data / "api.json"
    path.write_text(json.dumps({"url": fake.url, "token": TOKEN}))
    path.chmod(mode)
    return path


def shell_for(fake: StubService, folder: Path) -> Shell:
    """A shell on the machine where the service is up."""
    home, workspace = folder / "home", folder / "work"
    home.mkdir()
    workspace.mkdir()
    write_service_file(fake, home)
    return Shell(home, workspace)
