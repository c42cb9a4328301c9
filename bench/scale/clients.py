"""Clients of the HTTP API: they start runs through one orchestrator and watch through another.

They behave as a careful client does: an `Idempotency-Key` for each run, a retry at another
orchestrator when there is no answer, and `Last-Event-ID` when a stream is interrupted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from bench.scale.consistency import RequestedRun, WatchedRun
from bench.scale.deployment import Deployment, edge_names

REQUEST_TIMEOUT = aiohttp.ClientTimeout(6)
STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=20)
"""The server sends at least a keep-alive comment every 15 seconds."""
RETRY_STATUSES = frozenset({408, 429, 500, 502, 503})
RETRY_DELAY_S = 0.2
OVERSPENDER_SHARE = 0.06
"""The share of users who try to exceed their budget."""
SCOPES = ("runs:read", "runs:write", "sessions:read", "sessions:write")


class Refused(Exception):
    """The service rejected a request, and a retry cannot help."""


@dataclass
class Service:
    """A client that knows the addresses of all orchestrators."""

    http: aiohttp.ClientSession
    urls: Sequence[str]
    rng: random.Random
    retried: int = 0
    server_errors: list[str] = field(default_factory=list)
    """Responses with status 500."""

    def order(self) -> list[str]:
        """The orchestrators in random order."""
        return self.rng.sample(list(self.urls), len(self.urls))

    async def ask(
        self, method: str, path: str, token: str, *, key: str = "", body: object = None
    ) -> Any:
        """Send a request, with the same key, until an orchestrator answers."""
        headers = {"authorization": f"Bearer {token}"} | ({"idempotency-key": key} if key else {})
        for url in itertools.cycle(self.order()):
            try:
                async with self.http.request(
                    method, url + path, json=body, headers=headers, timeout=REQUEST_TIMEOUT
                ) as response:
                    if response.status < 300:
                        return await response.json()
                    text = f"{method} {path}: {response.status} {(await response.text())[:300]}"
                    if response.status not in RETRY_STATUSES:
                        raise Refused(text)
                    if response.status == 500:
                        self.server_errors.append(text)
            except (aiohttp.ClientError, TimeoutError):
                pass
            self.retried += 1
            await asyncio.sleep(RETRY_DELAY_S)
        raise AssertionError("not reached")

    async def watch(self, run: str, token: str, first: str = "") -> WatchedRun:
        """Watch a run to its end, through any reachable orchestrator."""
        seen: list[int] = []
        urls = self.order()
        urls = [first, *(url for url in urls if url != first)] if first else urls
        for url in itertools.cycle(urls):
            headers = {
                "authorization": f"Bearer {token}",
                "last-event-id": str(max(seen, default=0)),
            }
            try:
                path = f"{url}/v1/runs/{run}/events?follow=true"
                async with self.http.get(path, headers=headers, timeout=STREAM_TIMEOUT) as response:
                    if response.status == 200 and await _read(response, seen):
                        return WatchedRun(run, tuple(seen))
            except (aiohttp.ClientError, TimeoutError):
                pass
            self.retried += 1
            await asyncio.sleep(RETRY_DELAY_S)
        raise AssertionError("not reached")


async def _read(response: aiohttp.ClientResponse, seen: list[int]) -> bool:
    """Read the event stream; whether the run has ended, and is not waiting for input."""
    number, last = 0, False
    async for line in response.content:
        if line.startswith(b"id: "):
            number = int(line[4:])
        elif line.startswith(b"event: ") and number:
            seen.append(number)
            number, last = 0, line.strip() == b"event: run_finished"
        elif line.startswith(b"data: ") and last:
            stop = json.loads(line[6:])["event"]["stop"]
            if stop != "waiting":
                return True
    return False


@dataclass
class Script:
    """Generates messages that script the model: one line for each reply of a run."""

    rng: random.Random
    edges: Sequence[str]

    def key(self) -> str:
        """A new key for a run."""
        return f"k{self.rng.getrandbits(40):010x}"

    def run(self, key: str, calls: int, turns: int) -> str:
        """The script of a run: `turns` replies with `calls` calls each, then a final reply."""
        lines: list[str] = []
        for turn in range(1, turns + 1):
            requested = [self._call(f"{key}.{turn}.{n}") for n in range(1, calls + 1)]
            if turn > 1 and self.rng.random() < 0.1:
                requested.append(self._task(f"{key}s{turn}"))
            text = f"words {self.rng.randint(2, 8)} {self.rng.uniform(0, 0.08):.2f}"
            lines.append(f"{text} call {' && call '.join(requested)}")
        return "\n".join([*lines, f"say All is done for {key}."])

    def _call(self, mark: str) -> str:
        delay = f"; sleep {self.rng.uniform(0.1, 1.5):.1f}" if self.rng.random() < 0.3 else ""
        params = {"command": f"echo {mark} $EPOCHREALTIME >> marks{delay}"}
        call = {"agent_id": self.rng.choice(self.edges), "action": "bash", "params": params}
        return f"edge_call {json.dumps(call)}"

    def _task(self, key: str) -> str:
        """A sub-run with one call."""
        prompt = f"call {self._call(f'{key}.1.1')}\nsay The sub-run {key}. is done."
        return f"task {json.dumps({'agent': 'evoclaw', 'prompt': prompt, 'description': key})}"


@dataclass
class Load:
    """Simulated users with conversations, until stopped."""

    deployment: Deployment
    service: Service
    admin: str
    rng: random.Random
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    requested: dict[str, RequestedRun] = field(default_factory=dict)
    watched: list[WatchedRun] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    open: int = 0
    approved: int = 0
    _users: itertools.count[int] = field(default_factory=itertools.count)
    _turns: itertools.count[int] = field(default_factory=itertools.count)

    def script(self) -> Script:
        """A script generator for the edges of the deployment."""
        return Script(self.rng, edge_names(self.deployment.plan))

    async def converse(self) -> None:
        """Simulate one user after the other; the first one, and some later ones, overspend."""
        while not self.stop.is_set():
            overspends = next(self._turns) == 0 or self.rng.random() < OVERSPENDER_SHARE
            try:
                await (self._overspend() if overspends else self._converse_within_budget())
            except Refused as problem:
                self.refused.append(str(problem))

    async def approve(self) -> None:
        """Answer the approvals that a nearly used budget asks for, at any orchestrator."""
        while True:
            await asyncio.sleep(1.0)
            try:
                page = await self.service.ask("GET", "/v1/approvals", self.admin)
                for case in (case for case in page["items"] if case["standing"] == "waiting"):
                    path, body = f"/v1/runs/{case['run_id']}/approve", {"approval_id": case["id"]}
                    await self.service.ask("POST", path, self.admin, body=body)
                    self.approved += 1
            except Refused:
                continue  # approved by an earlier attempt whose response was lost

    async def _converse_within_budget(self) -> None:
        """A few runs in one session; some users do not wait for the answer."""
        user, token = await self._new_user()
        hasty, session, script = self.rng.random() < 0.3, "", self.script()
        watching: list[asyncio.Task[None]] = []
        # At most two calls in each of three turns in four runs, plus some sub-runs: within the
        # budget of a user.
        for number in range(self.rng.randint(1, 4)):
            if self.stop.is_set():
                break
            key = script.key()
            text = script.run(key, self.rng.randint(1, 2), self.rng.randint(1, 3))
            session, watch = await self._start(user, token, session, number, key, text)
            watching.append(watch)
            if not hasty:
                await watch
        if watching:
            await asyncio.wait(watching)

    async def _overspend(self) -> None:
        """Exceed the budget in several concurrent sessions, through all orchestrators."""
        user, token = await self._new_user()
        plan, script = self.deployment.plan, self.script()
        calls = 3
        # Each run exceeds the budget of a run, and all runs together that of the user.
        turns = plan.calls_of_run // calls + 2
        sessions = plan.calls_of_user // plan.calls_of_run + 2

        async def run() -> None:
            key = script.key()
            _, watch = await self._start(user, token, "", 0, key, script.run(key, calls, turns))
            await watch

        await asyncio.gather(*(run() for _ in range(sessions)))

    async def _new_user(self) -> tuple[str, str]:
        user = f"user-{next(self._users):05d}"
        body = {"name": user, "user": user, "scopes": SCOPES}
        created = await self.service.ask("POST", "/v1/tokens", self.admin, body=body)
        return user, created["token"]

    async def _start(
        self, user: str, token: str, session: str, number: int, key: str, text: str
    ) -> tuple[str, asyncio.Task[None]]:
        """Start a run, sometimes with a concurrent duplicate request, and watch it elsewhere."""
        body = {"message": text} | ({"session_id": session} if session else {})
        asked_at = time.time()
        self.requested[key] = RequestedRun(key, session, number, user, asked_at=asked_at)
        start = self._post_run(token, key, body)
        if self.rng.random() < 0.2:
            views = await asyncio.gather(start, self._post_run(token, key, body))
        else:
            views = [await start]
        session = views[0]["session_id"]
        runs = frozenset(view["run_id"] for view in views)
        self.requested[key] = RequestedRun(
            key, session, number, user, runs, asked_at, acknowledged_at=time.time()
        )
        return session, asyncio.create_task(self._follow(views[0]["run_id"], token))

    async def _post_run(self, token: str, key: str, body: dict[str, str]) -> Any:
        return await self.service.ask("POST", "/v1/runs", token, key=key, body=body)

    async def _follow(self, run: str, token: str) -> None:
        self.open += 1
        try:
            self.watched.append(await self.service.watch(run, token))
        finally:
            self.open -= 1


async def create_admin_token(deployment: Deployment, http: aiohttp.ClientSession) -> str:
    """An admin token that stays valid when orchestrators restart."""
    first = deployment.orchestrators[0]
    api = json.loads((first.home / "api.json").read_text())
    service = Service(http, [first.url], random.Random(0))
    body = {"name": "bench", "scopes": ["*"]}
    created = await service.ask("POST", "/v1/tokens", api["token"], body=body)
    return str(created["token"])


async def until(condition: Callable[[], Any], seconds: float) -> bool:
    """Wait for a condition; whether it became true in time."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                result = condition()
                if result if isinstance(result, bool) else await result:
                    return True
                await asyncio.sleep(0.2)
    except TimeoutError:
        return False


async def approve(deployment: Deployment, http: aiohttp.ClientSession, admin: str) -> None:
    """Approve the tools of every edge, and wait until every orchestrator knows them."""
    names = edge_names(deployment.plan)
    for orchestrator in deployment.orchestrators:
        service = Service(http, [orchestrator.url], random.Random(0))

        async def usable(service: Service = service) -> bool:
            fleet = await service.ask("GET", "/v1/fleet", admin)
            for edge in fleet["items"]:
                if edge.get("waiting"):
                    await service.ask("POST", f"/v1/fleet/{edge['agent_id']}/approve", admin)
            # An orchestrator asks for the tools after the edge is online.
            able = [e for e in fleet["items"] if e["online"] and "bash" in e.get("tools", ())]
            return len(able) >= len(names)

        if not await until(usable, 120.0):
            log = orchestrator.log_text()[-1000:]
            raise SystemExit(f"{orchestrator.name} does not see all edges: {log}")
