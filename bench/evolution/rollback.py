"""How long a genome that breaks a bound stays in use: `make evobench ARGS="--rollback"`.

Real processes: `evoclaw up` with SQLite or PostgreSQL, a model server, and sessions over HTTP. The
bad genome allows one turn, and the task needs two, so each of its runs fails. It breaks a bound
after its promotion, at its canary stage, and while the engine validates another candidate. Then
the same with `kill -9` of the service when the bound has just broken. The last line is the result
as JSON: `python -m bench.evolution.rollback`.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.postgres import Postgres, why_no_postgres
from tests.support.service import Client
from tests.support.up_process import UpProcess, ok, start_run, up_process, wait_for_state
from tests.support.waiting import until

from evoclaw import verify
from evoclaw.core.messages import JSON
from evoclaw.evolution.candidates import STAGES, Stage, fold_candidates
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry
from evoclaw.store.genomes import GenomeChanged
from evoclaw.wiring.evaluation import open_lineage

AGENT = "helper"
REPETITIONS, LONG_STEPS, KILLS = 50, 10, 5
"""Of each kind: undisturbed, during a long step, and with `kill -9`."""
DECIDING_RUNS = 10
"""One failed run of ten keeps the bound, two break it."""
BREAKING_RUNS = 2
BASELINE_RUNS = 5
TASK = "call todoread {}\nsay done"
SLOW_TASK = "words 240 0.25"
"""A minute for each validation case."""
VALIDATION_CASES = 12
MAX_KILL_DELAY_S = 0.3
ROUND_TIMEOUT_S = 120.0
SETTINGS = f"""
[server]
requests_per_minute = 1000000
burst = 100000

[[agents]]
id = "{AGENT}"
capabilities = ["*"]
autonomy = "full"

[agents.evolution]
proposers = ["descriptions"]
canary_share = 1.0
canary_runs = {DECIDING_RUNS}
watch_runs = {DECIDING_RUNS}
max_runs_per_day = 1000000
"""
CASE = f"""
message = "{SLOW_TASK}"
split = "validation"

[[checks]]
kind = "answer"
contains = "word"
"""


@dataclass
class Rollback:
    """One broken bound."""

    rolled_back_s: float
    """From the stored end of the run that broke it to the entry that ends the use of the genome."""
    restored_s: float
    """To the start of the first run with the old genome."""


@dataclass
class RollbackBench:
    """A service whose agent gets bad genomes, and what was measured."""

    up: UpProcess
    client: Client
    lineage: GenomeLineage
    rng: random.Random = field(default_factory=lambda: random.Random(31))
    made: int = 0
    lost: int = 0
    """Entries that a killed service had stored and that are not there, or changed."""
    repeated: int = 0
    """Rollbacks and rejections of a genome beyond the first."""

    async def run(self) -> dict[str, Any]:
        """A run in a new session, when it has ended; with the genome that it used."""
        run = await start_run(self.client, TASK, agent=AGENT)
        found = await wait_for_state(self.client, run)
        outcome = ok(await self.client.get(f"/v1/runs/{run}/outcome"))["outcome"]
        return {**found, "genome": outcome["genome"]}

    async def entry(self, kind: str, after: int, **fields: Any) -> LineageEntry:
        """The first entry like this after another one, as soon as it is stored."""
        found: list[LineageEntry] = []

        async def is_there() -> bool:
            entries = (await self.lineage.history(AGENT))[after:]
            found[:] = [entry for entry in entries if entry.kind == kind and _has(entry, fields)]
            return bool(found)

        await until(is_there, ROUND_TIMEOUT_S, f"a {kind} with {fields}")
        return found[0]

    async def propose(self, patch: dict[str, JSON], stage: Stage | None) -> LineageEntry:
        """A candidate that is at a stage, or passed all; the engine takes it on."""
        passed = STAGES if stage is None else STAGES[: STAGES.index(stage)]
        async with asyncio.timeout(ROUND_TIMEOUT_S):
            while True:
                self.made += 1
                notes: JSON = [f"Attempt {self.made}."]
                proposal = await self.lineage.propose(AGENT, {**patch, "notes": notes}, by="bench")
                assert proposal is not None
                try:
                    for number, before in enumerate(passed, proposal.number):
                        await self.lineage.add_verdict(
                            AGENT, proposal, before, passed=True, after=number, by="bench",
                            evidence={"approval": "person"},
                        )  # fmt: skip
                except GenomeChanged:
                    # The engine was faster and judges it itself; it must not be in the way.
                    await self._reject(proposal)
                    continue
                return proposal

    async def _reject(self, proposal: LineageEntry) -> None:
        async with asyncio.timeout(ROUND_TIMEOUT_S):
            while True:
                entries = await self.lineage.history(AGENT)
                candidate = fold_candidates(entries)[proposal.number]
                if candidate.stage is None:
                    return
                with suppress(GenomeChanged):
                    await self.lineage.add_verdict(
                        AGENT, proposal, candidate.stage, passed=False, after=len(entries),
                        by="bench",
                    )  # fmt: skip

    async def bad_genome(self, *, canary: bool) -> LineageEntry:
        """A bad genome that new sessions use from now on."""
        proposal = await self.propose({"max_turns": 1}, Stage.CANARY if canary else None)
        number = proposal.number
        if canary:
            await self.entry("verdict", number, candidate=number, stage="canary")
        else:
            await self.entry("change", number, candidate=number)
        return proposal

    async def break_bound(self, proposal: LineageEntry) -> dict[str, Any]:
        """Run until the bound is broken; the run that broke it."""
        bad: list[dict[str, Any]] = []
        while len(bad) < BREAKING_RUNS:
            run = await self.run()
            if run["genome"] == proposal.digest:
                assert run["stop"] != "completed", run
                bad.append(run)
        return bad[-1]

    async def finish(
        self, proposal: LineageEntry, broke: dict[str, Any], *, canary: bool
    ) -> Rollback:
        """Wait for the entry that ends the use of the genome, and for a run with the old one."""
        while True:
            run = await self.run()
            if run["genome"] != proposal.digest:
                break
        wanted: dict[str, Any] = {"candidate": proposal.number}
        if canary:
            wanted |= {"stage": "canary", "passed": False}
        kind = "verdict" if canary else "rollback"
        entry = await self.entry(kind, proposal.number, **wanted)
        entries = await self.lineage.history(AGENT)
        same = [e for e in entries if e.kind == kind and _has(e, wanted)]
        self.repeated += len(same) - 1
        assert run["stop"] == "completed", run
        return Rollback(entry.at - broke["ended_at"], run["began_at"] - broke["ended_at"])

    async def undisturbed(self, *, canary: bool) -> Rollback:
        """A bound breaks, and nothing else happens."""
        proposal = await self.bad_genome(canary=canary)
        broke = await self.break_bound(proposal)
        return await self.finish(proposal, broke, canary=canary)

    async def during_validation(self) -> Rollback:
        """A bound breaks while the engine validates another candidate, which takes minutes."""
        proposal = await self.bad_genome(canary=False)
        other = await self.propose({}, Stage.VALIDATION)
        await self.entry("verdict", other.number, candidate=other.number, stage="validation")
        asked = self.up.models.count(SLOW_TASK)
        await until(lambda: self.up.models.count(SLOW_TASK) > asked, ROUND_TIMEOUT_S)
        broke = await self.break_bound(proposal)
        return await self.finish(proposal, broke, canary=False)

    async def killed(self, *, canary: bool) -> Rollback:
        """The service is killed when the bound has just broken, and started again."""
        proposal = await self.bad_genome(canary=canary)
        broke = await self.break_bound(proposal)
        await asyncio.sleep(self.rng.uniform(0, MAX_KILL_DELAY_S))
        await self.up.kill()
        before = list(await self.lineage.history(AGENT))
        self.client = await self.up.start()
        found = await self.finish(proposal, broke, canary=canary)
        after = list(await self.lineage.history(AGENT))[: len(before)]
        self.lost += sum(old != new for old, new in zip(before, after, strict=True))
        self.lost += ok(await self.client.get(f"/v1/runs/{broke['run_id']}"))["stop"] == "completed"
        return found


def _has(entry: LineageEntry, fields: dict[str, Any]) -> bool:
    return all(getattr(entry, name) == value for name, value in fields.items())


@asynccontextmanager
async def _serving(folder: Path, store: str) -> AsyncGenerator[RollbackBench]:
    """A service; `store` is the address of a PostgreSQL, or empty for SQLite."""
    async with up_process(folder) as up:
        if store:
            up.shell.env["EVOCLAW_STORE_URL"] = store
        up.configure(SETTINGS)
        cases = up.home / "cases"
        cases.mkdir(mode=0o700)
        for number in range(VALIDATION_CASES):
            (cases / f"slow-{number}.toml").write_text(CASE)
        client = await up.start()
        async with open_lineage(up.shell.environment) as lineage:
            yield RollbackBench(up, client, lineage)


def _print(name: str, found: Sequence[Rollback]) -> None:
    for what, values in (
        ("rolled back", [each.rolled_back_s for each in found]),
        ("first run with the old genome", [each.restored_s for each in found]),
    ):
        median, worst = statistics.median(values), max(values)
        print(f"{name:40} {what:30} median {median:.2f} s, worst {worst:.2f} s", flush=True)


async def measure(folder: Path, store: str, repetitions: int, kills: int) -> dict[str, Any]:
    """Break bounds on one service."""
    name = "PostgreSQL" if store else "SQLite"
    async with _serving(folder, store) as bench:
        for _ in range(BASELINE_RUNS):
            assert (await bench.run())["stop"] == "completed"
        rounds: dict[str, list[Rollback]] = {}
        for canary in (False, True):
            kind = "at the canary stage" if canary else "after a promotion"
            rounds[kind] = [await bench.undisturbed(canary=canary) for _ in range(repetitions)]
            _print(f"{name} {kind}", rounds[kind])
        count = min(LONG_STEPS, repetitions)
        rounds["during a validation"] = [await bench.during_validation() for _ in range(count)]
        _print(f"{name} during a validation", rounds["during a validation"])
        killed = [await bench.killed(canary=bool(n % 2)) for n in range(2 * kills)]
        if killed:
            _print(f"{name} kill -9", killed)
        lines = "\n".join(json.dumps(line) for line in await bench.lineage.export(AGENT))
        problems = verify.verify(verify.read_bundle(lines.encode()), {})[1]
        print(f"{name}: {bench.lost} lost, {bench.repeated} repeated, {problems}", flush=True)
        assert not problems, problems
    every = [each for found in rounds.values() for each in found]
    return {
        "rolled_back": [each.rolled_back_s for each in every],
        "restored": [each.restored_s for each in every],
        "killed": [each.rolled_back_s for each in killed],
        "lost": bench.lost,
        "repeated": bench.repeated,
    }


def rollback(repetitions: int = REPETITIONS, kills: int = KILLS) -> dict[str, Any]:
    """The figures of the part `rollback` of `make evobench`."""
    results: list[dict[str, Any]] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results.append(asyncio.run(measure(Path(folder), "", repetitions, kills)))
    if why := why_no_postgres():
        print(f"not measured with PostgreSQL: {why}")
    else:
        server = Postgres(settings=("fsync=on",))
        try:
            server.start()
            with tempfile.TemporaryDirectory() as folder:
                results.append(asyncio.run(measure(Path(folder), server.url, repetitions, kills)))
        finally:
            server.close()
    rolled_back = [value for result in results for value in result["rolled_back"]]
    restored = [value for result in results for value in result["restored"]]
    killed = [value for result in results for value in result["killed"]]
    print(f"{len(rolled_back) + len(killed)} broken bounds, {time.monotonic() - started:.0f} s")
    return {
        "rollback_worst_s": round(max(rolled_back), 2),
        "rollback_median_s": round(statistics.median(rolled_back), 2),
        "rollback_rounds": len(rolled_back),
        "rollback_restored_worst_s": round(max(restored), 2),
        "rollback_kills": len(killed),
        "rollback_worst_after_kill_s": round(max(killed), 2) if killed else None,
        "rollback_lost": sum(result["lost"] for result in results),
        "rollback_repeated": sum(result["repeated"] for result in results),
    }


if __name__ == "__main__":
    print(json.dumps(rollback()))
