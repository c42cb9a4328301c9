"""The guide on evolution, typed: from a bad prompt to a promoted one, beside a real service."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evoclaw.cli import exits
from evoclaw.wiring.campaigns import evolution_lease
from evoclaw.wiring.evolution import signed_lineage
from evoclaw.wiring.store import all_schemas, connect_database
from tests.support.command_line import Typed
from tests.support.service import Client
from tests.support.up_process import PATIENCE, UpProcess, ok, up_process
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "evolution.md").read_text()
SECTION = GUIDE.partition("### From a bad prompt")[2]
SETTINGS = SECTION.partition("```toml\n")[2].partition("```")[0]
KINDS = ("evolution", "genome")
"""Of audit records: what a campaign did, and what a person did."""
SLOW_S = 4 * PATIENCE

pytestmark = pytest.mark.process


@asynccontextmanager
async def scripted_model() -> AsyncGenerator[str]:
    """The model of the guide; its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples/evolution/scripted_model.py"), "0",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        yield line.decode().strip()
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def adder(folder: Path, more: str = "") -> AsyncGenerator[UpProcess]:
    """The agent of the guide with its cases; the service is not started."""
    async with scripted_model() as url, up_process(folder) as up:
        up.shell.env |= {"EVOCLAW_MODEL": "vllm/qwen3-adder", "VLLM_BASE_URL": url}
        up.configure(f"{SETTINGS}{more}")
        making = await asyncio.create_subprocess_exec(
            "sh", str(ROOT / "examples/evolution/make_cases.sh"), str(up.home / "cases")
        )
        assert await making.wait() == 0
        yield up


async def typed(up: UpProcess, line: str, *more: str, number: int = 5) -> Typed:
    """Type a line of the guide, with the number of the candidate here."""
    assert line in GUIDE, f"the guide does not say {line!r}"
    words = [str(number) if word == "5" else word for word in shlex.split(line)]
    return await up.shell.type(*words[1:], *more)


async def candidates(up: UpProcess) -> list[dict[str, Any]]:
    ran = await up.shell.type("evolve", "list", "adder", "--json")
    assert ran.code == exits.OK, ran.err
    return json.loads(ran.out)["candidates"]


async def wait_for_stage(up: UpProcess, wanted: str) -> dict[str, Any]:
    """Wait until the candidate is at a stage, or in a state."""
    found: list[dict[str, Any]] = []

    async def reached() -> bool:
        found[:] = await candidates(up)
        assert not found or found[0]["state"] != "rejected", (found, up.output())
        return bool(found) and wanted in (found[0]["stage"], found[0]["state"])

    await until(reached, SLOW_S, f"the candidate is {wanted}")
    return found[0]


async def ask(up: UpProcess) -> str:
    """A new session with one message of the guide; the answer."""
    assert 'echo "How much is 1 plus 1?" | evoclaw chat --agent adder' in GUIDE
    ran = await up.shell.type("chat", "--agent", "adder", stdin=b"How much is 1 plus 1?\n")
    assert ran.code == exits.OK, ran.err
    return ran.out.strip()


async def test_a_shipped_rule_is_found_by_command_and_no_model_is_asked_for_texts(
    tmp_path: Path,
) -> None:
    async with adder(tmp_path) as up:
        assert 'proposers = ["gepa"]' in SETTINGS
        up.configure(SETTINGS.replace('"gepa"', '"rules"'))
        ran = await typed(up, "evoclaw evolve adder")
        assert re.search(r"candidate \d+ waits for an approval", ran.out), (ran.out, ran.err)
        (candidate,) = await candidates(up)
        rule = "Answer with what was asked for, in as few words as possible."
        assert candidate["genome"]["notes"] == [rule]
        assert candidate["results"]["validation"]["evidence"]["candidate"]["rate"] == 1.0


async def test_the_guide_leads_from_a_bad_prompt_to_a_promoted_one(tmp_path: Path) -> None:
    async with adder(tmp_path) as up:
        before = await typed(up, "evoclaw eval adder")
        assert before.out.splitlines()[-1].startswith("0 of 26 passed"), before
        dry = await typed(up, "evoclaw evolve adder --dry-run")
        assert dry.out.splitlines() == ["adder has no candidates", "next: ask the proposers"]
        assert await candidates(up) == []

        ran = await typed(up, "evoclaw evolve adder")
        assert re.search(r"candidate \d+ waits for an approval", ran.out), (ran.out, ran.err)
        (candidate,) = await candidates(up)
        number = candidate["number"]
        assert "result only" in candidate["genome"]["prompt"]
        assert candidate["results"]["validation"]["evidence"]["candidate"]["rate"] == 1.0
        approved = await typed(
            up,
            'evoclaw evolve approve adder 5 --reason "short answers are better"',
            number=number,
        )
        assert approved.out == f"candidate {number} of adder approved\n", approved.err

        client = await up.start()
        for _ in range(2):
            assert "I believe" in await ask(up)
        await wait_for_stage(up, "canary")
        for _ in range(3):
            assert await ask(up) == "2"
        promoted = await wait_for_stage(up, "promoted")
        assert promoted["number"] == number
        shown = await typed(up, "evoclaw genome show adder")
        assert "result only" in shown.out
        verified = await typed(up, "evoclaw genome verify adder")
        assert verified.code == exits.OK, verified.out
        driven = await typed(up, "evoclaw evolve adder")
        asked = r"asked the proposers for another round|the service drives this campaign; the propo"
        assert re.search(asked, driven.out), driven.err

        back = await typed(up, "evoclaw genome rollback adder")
        assert back.code == exits.OK, back.err

        async def is_audited() -> bool:
            """Whether the audit has each step once; the engine may just be writing the last one."""
            found = [await client.get(f"/v1/audit?kind={k}&limit=500") for k in KINDS]
            records = [record for each in found for record in each.json["items"]]
            numbers = sorted(record["entry"] for record in records)
            history = await client.get("/v1/genomes/adder/history")
            return numbers == [entry["number"] for entry in history.json["items"]]

        await until(is_audited, PATIENCE, "each entry of the lineage is in the audit")
        assert "I believe" in await ask(up)


async def test_a_stop_holds_evolution_and_a_key_approves(tmp_path: Path) -> None:
    async with adder(tmp_path) as up:
        signed = await up.shell.type("evolve", "sign", "0" * 64, "--key", "release.key")
        public = signed.out.partition(":")[0]
        up.configure(f'{SETTINGS}approver_keys = ["{public}"]\n')
        stopped = await up.shell.type("stop", "--agent", "adder", "--reason", "holiday")
        assert stopped.code == exits.OK, stopped.err
        await up.start()
        held = await up.shell.type("evolve", "adder", "--dry-run")
        assert held.out.splitlines()[-1] == "a person stopped the agent adder (holiday)", held.err
        released = await up.shell.type("stop", "--agent", "adder", "--release")
        assert released.code == exits.OK, released.err
        waiting = await wait_for_stage(up, "approval")
        wrong = await up.shell.type(
            "evolve", "approve", "adder", str(waiting["number"]), "--signature", signed.out.strip()
        )
        assert "the signature is not one of candidate" in wrong.err
        signed = await up.shell.type("evolve", "sign", waiting["hash"], "--key", "release.key")
        approved = await up.shell.type(
            "evolve", "approve", "adder", str(waiting["number"]), "--signature", signed.out.strip()
        )
        assert approved.code == exits.OK, approved.err
        await wait_for_stage(up, "shadow")
        assert (await up.shell.type("genome", "verify", "adder")).code == exits.OK


async def test_a_service_killed_during_a_campaign_continues_it(tmp_path: Path) -> None:
    async with adder(tmp_path) as up:
        await up.start()
        await until(lambda: candidates(up), SLOW_S, "there is a candidate")
        await up.kill()
        await up.start()
        waiting = await wait_for_stage(up, "approval")
        rejected = await up.shell.type(
            "evolve", "reject", "adder", str(waiting["number"]), "--reason", "no"
        )
        assert rejected.code == exits.OK, rejected.err
        assert (await candidates(up))[0]["state"] == "rejected"
        assert (await up.shell.type("genome", "verify", "adder")).code == exits.OK


async def rounds(client: Client) -> list[dict[str, Any]]:
    """The rounds of proposers that have ended, and the requests for one, from the lineage."""
    entries = ok(await client.get("/v1/genomes/adder/history"))["items"]
    return [entry for entry in entries if entry["kind"] == "campaign"]


async def test_a_round_that_a_person_asked_for_over_http_survives_a_kill(tmp_path: Path) -> None:
    async with adder(tmp_path) as up:
        client = await up.start()
        waiting = await wait_for_stage(up, "approval")
        early = await client.post("/v1/agents/adder/campaign")
        assert (early.status, early.code) == (409, "busy")
        shown = await up.shell.type("evolve", "adder")
        assert "the service drives this campaign; the proposers of 'adder'" in shown.out
        number = str(waiting["number"])
        rejected = await up.shell.type("evolve", "reject", "adder", number, "--reason", "no")
        assert rejected.code == exits.OK, rejected.err

        async def idle() -> bool:
            found = ok(await client.get("/v1/agents/adder/campaign"))
            return found["next"] == "wait" and not found["candidate"]

        await until(idle, SLOW_S, "the first round has ended")
        before = len(await rounds(client))
        dry = await up.shell.type("evolve", "adder", "--dry-run")
        assert "next:" not in dry.out, dry.out
        asked = await client.post("/v1/agents/adder/campaign")
        assert asked.status == 202, asked.body
        await up.kill()
        client = await up.start()

        async def ended() -> bool:
            return len(await rounds(client)) >= before + 2

        await until(ended, SLOW_S, "the round that was asked for has ended")
        request, done, *_ = (await rounds(client))[before:]
        assert (request["scores"], request["by"]) == ({"requested": True}, "this-machine")
        assert "proposals" in done["scores"]
        assert (await up.shell.type("genome", "verify", "adder")).code == exits.OK


async def test_evolve_asks_the_orchestrator_on_another_machine_that_drives_the_campaign(
    tmp_path: Path,
) -> None:
    async with adder(tmp_path) as up:
        env = {"EVOCLAW_HOME": str(up.home)}
        async with connect_database(env, *all_schemas()) as database:
            lineage, lease = signed_lineage(database, up.home), evolution_lease("adder", database)
            assert await lease.try_acquire()
            await lineage.add_campaign("adder", by="evoclaw", reason="", evidence={"proposals": 0})
            asked = await up.shell.type("evolve", "adder")
            again = await up.shell.type("evolve", "adder")
            await lease.release()
        assert "asked the proposers for another round; another process drives" in asked.out
        assert again.code == exits.OK, again.err
        assert "another process drives this campaign; the proposers of 'adder'" in again.out
        assert "a round is under way" in again.out, "the request is stored"


async def status_of(up: UpProcess) -> str:
    """What `evoclaw evolve list` says of the campaign."""
    ran = await up.shell.type("evolve", "list", "adder", "--json")
    assert ran.code == exits.OK, ran.err
    return json.loads(ran.out)["status"]


async def test_what_ended_a_search_early_is_the_status_of_the_campaign(tmp_path: Path) -> None:
    async with adder(tmp_path, "max_runs_per_day = 4\n") as up:
        assert await status_of(up) == "next: ask the proposers"
        why = "6 runs are needed at a time, and max_runs_per_day is 4; raise it"
        ended = f"the proposers ended early today: gepa: {why}"
        ran = await up.shell.type("evolve", "adder")
        assert ran.out.splitlines() == ["adder has no candidates", ended], ran.err
        assert await status_of(up) == ended
        up.configure(SETTINGS)
        assert await status_of(up) == "next: ask the proposers"

        # Nothing listens there.
        up.shell.env["OLLAMA_HOST"] = "http://127.0.0.1:9"
        up.configure(f'{SETTINGS}model = "ollama/thinker"\n')
        ran = await up.shell.type("evolve", "adder")
        assert "the reflecting model 'ollama/thinker' did not answer" in ran.out, ran.err
        assert await status_of(up) == ran.out.splitlines()[-1]
        client = await up.start()
        items = (await client.get("/v1/evolution")).json["items"]
        shown = {item["agent"]: item["status"] for item in items}
        assert shown == {"adder": await status_of(up), "evoclaw": ""}
        entries = (await client.get("/v1/genomes/adder/history")).json["items"]
        assert [e["kind"] for e in entries].count("campaign") == 2, "each command asked once"
        runs = [e["scores"]["spent"]["runs"] for e in entries if e["kind"] == "evaluation"]
        assert sum(runs) <= 6 + 3 * 3, "three questions, then it ends"


async def test_a_promoted_genome_is_watched_also_while_no_proposer_can_be_asked(
    tmp_path: Path,
) -> None:
    quick = SETTINGS.replace("canary_runs = 3", "canary_runs = 1").replace(
        "shadow_runs = 2", "shadow_runs = 0"
    )
    async with adder(tmp_path) as up:
        up.configure(quick)
        assert (await up.shell.type("evolve", "adder")).code == exits.OK
        (candidate,) = await candidates(up)
        number = str(candidate["number"])
        approved = await up.shell.type("evolve", "approve", "adder", number, "--reason", "short")
        assert approved.code == exits.OK, approved.err
        up.configure(f'{quick}watch_runs = 2\nmodel = "nosuch/xx"\n')
        client = await up.start()
        campaign = ok(await client.get("/v1/agents/adder/campaign"))
        assert "unknown provider for model 'nosuch/xx'" in campaign["problems"][0]
        assert await ask(up) == "2"
        await wait_for_stage(up, "promoted")
        assert await ask(up) == "2"
        run = ok(await client.get("/v1/runs?limit=1"))["items"][0]["run_id"]
        rated = await up.shell.type("runs", "rate", run, "bad", "too short")
        assert rated.code == exits.OK, rated.err

        async def rolled_back() -> bool:
            return (await candidates(up))[0]["state"] == "rolled_back"

        await until(rolled_back, SLOW_S, "the promotion was taken back")
        assert "evolution asks for no proposals" in up.output()


async def test_wrong_settings_and_names_say_what_to_do(tmp_path: Path) -> None:
    async with adder(tmp_path) as up:
        unknown = await up.shell.type("evolve", "list", "nobody")
        assert "nobody" in unknown.err and "adder" in unknown.err
        unknown = await up.shell.type("eval", "nobody")
        assert "unknown agent 'nobody'" in unknown.err and "adder" in unknown.err
        up.configure('[[agents]]\nid = "adder"\n')
        off = await up.shell.type("evolve", "adder")
        assert "add [agents.evolution] with proposers" in off.err
        up.configure('[[agents]]\nid = "adder"\n[agents.evolution]\nrepeats = 2\n')
        without = await up.shell.type("evolve", "adder")
        assert "without `proposers` these settings have no effect" in without.err
        up.configure('[[agents]]\nid = "adder"\n[agents.evolution]\nproposers = ["magic"]\n')
        magic = await up.shell.type("evolve", "adder")
        assert "magic" in magic.err
        up.configure(f'{SETTINGS}model = "nosuch/xx"\n')
        nosuch = await up.shell.type("evolve", "adder")
        unknown_model = "[agents.evolution] model: unknown provider for model 'nosuch/xx'"
        assert nosuch.err.count(unknown_model) == 1, nosuch.err
        assert nosuch.code != exits.OK
        up.configure('[[agents]]\nid = "adder"\n[agents.evolution]\nproposers = ["numbers"]\n')
        up.configure(
            '[[agents]]\nid = "adder"\n[agents.evolution]\nproposers = ["numbers"]\n'
            "max_runs_per_day = 5\n"
        )
        few = await up.shell.type("evolve", "adder")
        assert "max_runs_per_day = 5 never allows to judge a case" in few.err
        assert "repeats = 3 needs 6 runs" in few.err and few.code != exits.OK
        up.configure('[[agents]]\nid = "adder"\n[agents.evolution]\nproposers = ["numbers"]\n')
        (up.home / "cases").rename(up.home / "no-cases")
        empty = await up.shell.type("evolve", "adder", "--dry-run")
        for split in ("train", "validation"):
            assert f"`evoclaw cases add RUN --split {split}`" in empty.err
