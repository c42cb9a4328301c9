"""People who use the service: they begin runs through one orchestrator and watch through another.

They do what a careful client does: an `Idempotency-Key` for each run, the same again elsewhere when
there was no answer, and `Last-Event-ID` when a stream broke off.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from bench.scale.consistency import Asked, Watched
from bench.scale.deployment import House, edge_names

TRY = aiohttp.ClientTimeout(6)
STREAM = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=20)
"""Something comes every 15 seconds, if only that it is still there."""
AGAIN = frozenset({408, 429, 500, 502, 503})
PAUSE = 0.2
GREEDY = 0.06
"""The part of people who want more than they may have."""
SCOPES = ("runs:read", "runs:write", "sessions:read", "sessions:write")


class Refused(Exception):
    """The service said no for good."""


@dataclass
class Service:
    """All orchestrators, as one who knows their addresses sees them."""

    http: aiohttp.ClientSession
    urls: Sequence[str]
    chance: random.Random
    retried: int = 0
    odd: list[str] = field(default_factory=list)
    """Answers that no client should get."""

    def order(self) -> list[str]:
        """Whom to ask, and whom next."""
        return self.chance.sample(list(self.urls), len(self.urls))

    async def ask(
        self, method: str, path: str, token: str, *, key: str = "", body: object = None
    ) -> Any:
        """Ask until somebody answers; the same key all the time."""
        headers = {"authorization": f"Bearer {token}"} | ({"idempotency-key": key} if key else {})
        for url in itertools.cycle(self.order()):
            try:
                async with self.http.request(
                    method, url + path, json=body, headers=headers, timeout=TRY
                ) as found:
                    if found.status < 300:
                        return await found.json()
                    text = f"{method} {path}: {found.status} {(await found.text())[:300]}"
                    if found.status not in AGAIN:
                        raise Refused(text)
                    if found.status == 500:
                        self.odd.append(text)
            except (aiohttp.ClientError, TimeoutError):
                pass
            self.retried += 1
            await asyncio.sleep(PAUSE)
        raise AssertionError("not reached")

    async def watch(self, run: str, token: str, first: str = "") -> Watched:
        """Watch a run to its end, through whoever is there."""
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
                async with self.http.get(path, headers=headers, timeout=STREAM) as found:
                    if found.status == 200 and await _read(found, seen):
                        return Watched(run, tuple(seen))
            except (aiohttp.ClientError, TimeoutError):
                pass
            self.retried += 1
            await asyncio.sleep(PAUSE)
        raise AssertionError("not reached")


async def _read(found: aiohttp.ClientResponse, seen: list[int]) -> bool:
    """Take what comes; whether the run has ended with it, and does not wait for somebody."""
    number, last = 0, False
    async for line in found.content:
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
    """What a run is to do: a line for each reply, as the model takes it."""

    chance: random.Random
    edges: Sequence[str]

    def key(self) -> str:
        """A new one."""
        return f"k{self.chance.getrandbits(40):010x}"

    def run(self, key: str, calls: int, turns: int) -> str:
        """So many replies with calls, then the last one."""
        lines: list[str] = []
        for turn in range(1, turns + 1):
            asked = [self._call(f"{key}.{turn}.{n}") for n in range(1, calls + 1)]
            if turn > 1 and self.chance.random() < 0.1:
                asked.append(self._task(f"{key}s{turn}"))
            said = f"words {self.chance.randint(2, 8)} {self.chance.uniform(0, 0.08):.2f}"
            lines.append(f"{said} call {' && call '.join(asked)}")
        return "\n".join([*lines, f"say All is done for {key}."])

    def _call(self, mark: str) -> str:
        nap = f"; sleep {self.chance.uniform(0.1, 1.5):.1f}" if self.chance.random() < 0.3 else ""
        command = f"echo {mark} $EPOCHREALTIME >> marks{nap}"
        params = {"command": command}
        asked = {"agent_id": self.chance.choice(self.edges), "action": "bash", "params": params}
        return f"edge_call {json.dumps(asked)}"

    def _task(self, key: str) -> str:
        """A sub-run with a call of its own."""
        prompt = f"call {self._call(f'{key}.1.1')}\nsay The sub-run {key}. is done."
        return f"task {json.dumps({'agent': 'evoclaw', 'prompt': prompt, 'description': key})}"


@dataclass
class Load:
    """Conversations, as many at a time as are wanted, until told to stop."""

    house: House
    service: Service
    admin: str
    chance: random.Random
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    asked: dict[str, Asked] = field(default_factory=dict)
    watched: list[Watched] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    open: int = 0
    approved: int = 0
    _users: itertools.count[int] = field(default_factory=itertools.count)
    _turns: itertools.count[int] = field(default_factory=itertools.count)

    def script(self) -> Script:
        """Of the edges that there are."""
        return Script(self.chance, edge_names(self.house.plan))

    async def converse(self) -> None:
        """One person after the other; the first of all wants too much, as some later ones do."""
        while not self.stop.is_set():
            greedy = next(self._turns) == 0 or self.chance.random() < GREEDY
            try:
                await (self._greedy() if greedy else self._polite())
            except Refused as problem:
                self.refused.append(str(problem))

    async def approve(self) -> None:
        """Be the person who is asked when a budget is nearly used, at whichever orchestrator."""
        while True:
            await asyncio.sleep(1.0)
            try:
                found = await self.service.ask("GET", "/v1/approvals", self.admin)
                for one in (one for one in found["items"] if one["standing"] == "waiting"):
                    path, body = f"/v1/runs/{one['run_id']}/approve", {"approval_id": one["id"]}
                    await self.service.ask("POST", path, self.admin, body=body)
                    self.approved += 1
            except Refused:
                continue  # somebody was quicker: an answer that was lost on its way back

    async def _polite(self) -> None:
        """A few runs in one session; some people do not wait for the answer."""
        user, token = await self._person()
        hasty, session, script = self.chance.random() < 0.3, "", self.script()
        watching: list[asyncio.Task[None]] = []
        # Two calls a turn in three turns in four runs, and a sub-run here and there, are below
        # what one may do.
        for number in range(self.chance.randint(1, 4)):
            if self.stop.is_set():
                break
            key = script.key()
            text = script.run(key, self.chance.randint(1, 2), self.chance.randint(1, 3))
            session, watch = await self._begin(user, token, session, number, key, text)
            watching.append(watch)
            if not hasty:
                await watch
        if watching:
            await asyncio.wait(watching)

    async def _greedy(self) -> None:
        """More than one may have, in several sessions at once, through all of them."""
        user, token = await self._person()
        plan, script = self.house.plan, self.script()
        calls = 3
        # More in one run than a run may, and in all than a person may.
        turns = plan.calls_of_run // calls + 2
        sessions = plan.calls_of_user // plan.calls_of_run + 2

        async def one() -> None:
            key = script.key()
            _, watch = await self._begin(user, token, "", 0, key, script.run(key, calls, turns))
            await watch

        await asyncio.gather(*(one() for _ in range(sessions)))

    async def _person(self) -> tuple[str, str]:
        user = f"user-{next(self._users):05d}"
        body = {"name": user, "user": user, "scopes": SCOPES}
        made = await self.service.ask("POST", "/v1/tokens", self.admin, body=body)
        return user, made["token"]

    async def _begin(
        self, user: str, token: str, session: str, number: int, key: str, text: str
    ) -> tuple[str, asyncio.Task[None]]:
        """Begin a run, now and then twice at once, and watch it in another place."""
        body = {"message": text} | ({"session_id": session} if session else {})
        wanted = Asked(key, session, number, user)
        self.asked[key] = wanted
        begin = self._told(token, key, body)
        if self.chance.random() < 0.2:
            views = await asyncio.gather(begin, self._told(token, key, body))
        else:
            views = [await begin]
        session = views[0]["session_id"]
        runs = frozenset(view["run_id"] for view in views)
        self.asked[key] = Asked(key, session, number, user, runs)
        return session, asyncio.create_task(self._follow(views[0]["run_id"], token))

    async def _told(self, token: str, key: str, body: dict[str, str]) -> Any:
        return await self.service.ask("POST", "/v1/runs", token, key=key, body=body)

    async def _follow(self, run: str, token: str) -> None:
        self.open += 1
        try:
            self.watched.append(await self.service.watch(run, token))
        finally:
            self.open -= 1


async def operator(house: House, http: aiohttp.ClientSession) -> str:
    """A token for everything that outlives the processes."""
    first = house.orchestrators[0]
    said = json.loads((first.home / "api.json").read_text())
    service = Service(http, [first.url], random.Random(0))
    body = {"name": "bench", "scopes": ["*"]}
    made = await service.ask("POST", "/v1/tokens", said["token"], body=body)
    return str(made["token"])


async def until(condition: Callable[[], Any], seconds: float) -> bool:
    """Wait, bounded; whether it came to be so."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = condition()
                if found if isinstance(found, bool) else await found:
                    return True
                await asyncio.sleep(0.2)
    except TimeoutError:
        return False


async def approve(house: House, http: aiohttp.ClientSession, admin: str) -> None:
    """Have the tools of every edge approved, and known at every orchestrator."""
    names = edge_names(house.plan)
    for one in house.orchestrators:
        service = Service(http, [one.url], random.Random(0))

        async def usable(service: Service = service) -> bool:
            found = await service.ask("GET", "/v1/fleet", admin)
            for edge in found["items"]:
                if edge.get("waiting"):
                    await service.ask("POST", f"/v1/fleet/{edge['agent_id']}/approve", admin)
            # What an edge offers is asked for after it was seen.
            able = [e for e in found["items"] if e["online"] and "bash" in e.get("tools", ())]
            return len(able) >= len(names)

        if not await until(usable, 120.0):
            raise SystemExit(f"{one.name} does not see all edges: {one.words()[-1000:]}")
