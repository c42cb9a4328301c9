"""A genome that is bad on the third edge, rolled out to 100 edges: how many got it, how long.

Real processes: mosquitto, `evoclaw up` and the edges. The genome limits calls to half a second. The
third edge that gets it runs calls that take longer; nothing else shows that the genome is bad. Then
the same with `kill -9` of the orchestrator: before it has seen the failed calls, and while it rolls
back. The last line is the result as JSON: `python -m bench.evolution.fleet`.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from bench.scale.clients import Refused, Service, approve, create_admin_token
from bench.scale.deployment import Deployment, Plan, deploy, edge_names

EDGES = 100
BAD_AT = 3
"""The edge, in the order in which they got the genome, on which calls fail."""
BAD_GENOME = {"call_seconds": 0.5}
SLOW_COMMAND, QUICK_COMMAND = "sleep 2", "true"
ROUND_TIMEOUT_S = 180.0
POLL_INTERVAL_S = 0.1
KILLS_WHILE_ROLLING_BACK = 4


@dataclass
class BadRollout:
    """What one roll-out of the bad genome did."""

    name: str
    got_bad: int = 0
    restored_s: float = 0.0
    """From the third failed call, or the halt, until every edge has its old genome again."""
    left_bad: int = 0
    applied_twice: int = 0
    problem: str = ""


@dataclass
class FleetBench:
    """A deployment, and what was measured on it."""

    deployment: Deployment
    http: aiohttp.ClientSession
    token: str
    before: dict[str, str] = field(default_factory=dict)
    """The digest of the genome of each edge before everything."""

    @property
    def service(self) -> Service:
        """A client of the only orchestrator."""
        return Service(self.http, [self.deployment.orchestrators[0].url], random.Random(0))

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request until it is answered."""
        return await self.service.ask(method, path, self.token, body=body)

    async def start(self) -> str:
        """Start a roll-out of the bad genome; its id."""
        bounds = {"soak_s": 60, "min_evidence": 20}
        body = {"selector": "*", "genome": BAD_GENOME, "bounds": bounds, "reason": "bench"}
        return (await self.ask("POST", "/v1/genome-rollouts", body))["id"]

    async def show(self, rollout: str) -> Any:
        """The roll-out and its edges."""
        return await self.ask("GET", f"/v1/genome-rollouts/{rollout}")

    async def call(self, edge: str, command: str) -> bool:
        """Run a command on an edge; whether it succeeded."""
        body = {"arguments": {"command": command}, "on": edge}
        answer = await self.ask("POST", "/v1/tools/bash/call", body)
        if answer.get("error") not in (None, "timeout"):
            raise AssertionError(f"{edge}: {answer}")
        return answer.get("error") is None

    async def has_bad(self, rollout: str, number: int) -> list[str]:
        """Wait until so many edges confirmed the genome; their names."""
        found: list[str] = []
        async with asyncio.timeout(ROUND_TIMEOUT_S):
            while len(found) < number:
                edges = (await self.show(rollout))["edges"]
                found += [
                    edge["agent_id"]
                    for edge in edges
                    if edge["state"] == "applied" and edge["agent_id"] not in found
                ]
                await asyncio.sleep(POLL_INTERVAL_S)
        return found

    async def fail(self, rollout: str) -> None:
        """Run calls on the edges with the genome, of which those on the third one fail."""
        names = await self.has_bad(rollout, BAD_AT)
        for name in names[: BAD_AT - 1]:
            assert await self.call(name, QUICK_COMMAND), name
        failed = await asyncio.gather(*(self.call(names[BAD_AT - 1], SLOW_COMMAND) for _ in "123"))
        assert not any(failed), "the genome is not bad"

    async def finish(self, rollout: str, result: BadRollout, began: float) -> BadRollout:
        """Wait for the end, and ask every edge what it has."""
        async with asyncio.timeout(ROUND_TIMEOUT_S):
            while True:
                found = await self.show(rollout)
                if found["rollout"]["state"] == "rolled_back":
                    break
                await asyncio.sleep(POLL_INTERVAL_S)
        result.restored_s = round(time.monotonic() - began, 2)
        result.problem = found["rollout"]["problem"]
        edges = {edge["agent_id"]: edge for edge in found["edges"]}
        result.got_bad = sum(e["digest"] not in ("", e["before_digest"]) for e in edges.values())
        for name, edge in edges.items():
            genome = await self.ask("GET", f"/v1/genomes/{name}")
            result.left_bad += genome["digest"] != self.before[name]
            # The genome, if it got it, and its old one again: two versions.
            expected = 0 if edge["stage"] is None else edge["before_version"] + 2
            result.applied_twice += bool(expected) and genome["version"] > expected
        row = f"{result.name:32} {result.got_bad} edges, back after {result.restored_s:.2f} s"
        more = f"{result.left_bad} left on it, {result.applied_twice} changed twice"
        print(f"{row}, {more}: {result.problem}", flush=True)
        return result

    async def kill(self) -> None:
        """End the orchestrator with SIGKILL, and start it again."""
        orchestrator = self.deployment.orchestrators[0]
        await orchestrator.kill()
        await orchestrator.start()
        await orchestrator.wait_ready(self.http)

    async def broken_bound(self, *, kill: bool) -> BadRollout:
        """The roll-out takes itself back when calls on the third edge fail."""
        result = BadRollout("bound broken, kill -9" if kill else "bound broken")
        rollout = await self.start()
        await self.fail(rollout)
        began = time.monotonic()
        if kill:
            await self.kill()
        return await self.finish(rollout, result, began)

    async def halted(self, delay_s: float) -> BadRollout:
        """A person halts the roll-out; the orchestrator is killed shortly after."""
        result = BadRollout(f"halted, kill -9 after {delay_s * 1000:.0f} ms")
        rollout = await self.start()
        await self.has_bad(rollout, 1)
        began = time.monotonic()
        halting = asyncio.create_task(self._halt(rollout))
        await asyncio.sleep(delay_s)
        await self.kill()
        await halting
        return await self.finish(rollout, result, began)

    async def _halt(self, rollout: str) -> None:
        try:
            path = f"/v1/genome-rollouts/{rollout}/halt"
            await self.ask("POST", path, {"reason": "a person saw it"})
        except Refused as problem:
            raise AssertionError(f"not halted: {problem}") from None


async def measure(folder: Path) -> dict[str, Any]:
    """Run all roll-outs on one deployment."""
    plan = Plan(
        edges=EDGES, single_edges=0, broker="mosquitto", orchestrators=1, store="sqlite",
        calls_of_user=0, direct=True,
    )  # fmt: skip
    async with deploy(folder, plan) as deployment, aiohttp.ClientSession() as http:
        await deployment.orchestrators[0].wait_ready(http)
        token = await create_admin_token(deployment, http)
        await approve(deployment, http, token)
        bench = FleetBench(deployment, http, token)
        for name in edge_names(plan):
            bench.before[name] = (await bench.ask("GET", f"/v1/genomes/{name}"))["digest"]
        rng = random.Random(22)
        results = [await bench.broken_bound(kill=False), await bench.broken_bound(kill=True)]
        delays = [rng.uniform(0, 0.1) for _ in range(KILLS_WHILE_ROLLING_BACK)]
        results += [await bench.halted(delay_s) for delay_s in delays]
    return {
        "fleet_edges": EDGES,
        "fleet_got_bad": max(result.got_bad for result in results),
        "fleet_restored_s": results[0].restored_s,
        "fleet_restored_after_kill_s": max(result.restored_s for result in results[1:]),
        "fleet_kills": len(results) - 1,
        "fleet_left_bad": sum(result.left_bad for result in results),
        "fleet_applied_twice": sum(result.applied_twice for result in results),
    }


def fleet() -> dict[str, Any]:
    """The figures of the part `fleet` of `make evobench`."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    print(json.dumps(fleet()))
