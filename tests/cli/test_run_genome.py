"""`evoclaw run` with the genome of this machine: real processes, a real store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evoclaw.core.messages import JSON
from evoclaw.store.genomes import has_genome
from evoclaw.wiring.evaluation import open_lineage
from tests.support.command_line import Shell, Typed, reply, shell

pytestmark = pytest.mark.process

FIRST: dict[str, JSON] = {
    "prompt": "Answer like a pirate.",
    "notes": ["Rum is not an answer."],
    "temperature": 0.25,
    "max_turns": 3,
    "tools": {"read": {"description": "Opens a scroll."}},
    "new_skills": {"waltz": {"description": "At a ball.", "instructions": "Count to three."}},
}


async def change(here: Shell, patch: dict[str, JSON]) -> str:
    async with open_lineage(here.environment) as lineage:
        return (await lineage.change("evoclaw", patch, by="test")).digest


def events(ran: Typed) -> list[Any]:
    assert ran.code == 0, ran.err
    return [json.loads(line)["event"] for line in ran.out.splitlines()]


def system(event: Any) -> str:
    return json.dumps(event["messages"][0])


async def test_a_run_uses_the_current_genome_a_version_or_none(tmp_path: Path) -> None:
    skill = reply("", ("skill", {"name": "waltz"}))
    async with shell(tmp_path, skill, reply("Arr."), reply("Hm."), reply("Ho.")) as here:
        digest = await change(here, FIRST)
        await change(here, {"prompt": None, "tools": None})
        first = events(await here.type("run", "dance", "--json", "--genome", "1"))
        settings = first[0]["settings"]
        assert (settings["genome"], settings["max_turns"]) == (digest, 3)
        assert settings["temperature"] == 0.25
        said = system(first[0])
        assert r"Answer like a pirate.\nNotes from earlier runs:\n- Rum is not" in said
        assert "- waltz: At a ball." in said
        offered = next(event["tools"] for event in first if event["type"] == "tools_changed")
        described = {tool["name"]: tool["description"] for tool in offered}
        assert described["read"] == "Opens a scroll."
        (result,) = [e["result"] for e in first if e["type"] == "call_finished"]
        assert "Count to three." in json.dumps(result)

        current = events(await here.type("run", "dance", "--json"))[0]
        assert current["settings"]["genome"] != digest
        assert "pirate" not in system(current) and "- Rum is not" in system(current)
        none = events(await here.type("run", "dance", "--json", "--genome", "none"))[0]
        assert "genome" not in none["settings"] and "Rum" not in system(none)


async def test_a_genome_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("Hi.")) as here:
        for arguments, said in (
            (("--genome", "9"), "has no genome version 9"),
            (("--genome", "new"), "--genome must be a version or `none`, not 'new'"),
            (("--genome", "1", "--on", "any"), "without --on and --resume"),
            (("--genome", "1", "--session", "s"), "--session cannot be combined with --genome"),
        ):
            ran = await here.type("run", "dance", *arguments)
            assert ran.code != 0 and said in ran.err, ran.err


async def test_a_resumed_run_keeps_its_genome(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    write = reply("", ("write", {"path": "a.txt", "content": "x"}))
    async with shell(tmp_path, write, reply("Done.")) as here:
        digest = await change(here, {"notes": ["Be kind."]})
        waits = await here.type("run", "write", "--wait", "--record", str(record))
        assert record.exists(), waits.err
        await change(here, {"notes": ["Be quick."]})
        await here.type("run", "--resume", str(record), "--read-only", "--json")
    resumed = [json.loads(line)["event"] for line in record.read_text().splitlines()]
    found = [
        e["settings"]["genome"] for e in resumed if e["type"] in ("run_started", "run_resumed")
    ]
    assert found == [digest, digest]


async def test_a_machine_without_genomes_makes_no_database_for_them(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("Hi."), reply("Hi.")) as here:
        database = here.home / ".evoclaw" / "evoclaw.db"
        assert not has_genome(database, "evoclaw")
        ran = events(await here.type("run", "hello", "--json"))
        assert "genome" not in ran[0]["settings"]
        assert not has_genome(database, "evoclaw"), "no file, or no table"
        await change(here, {"notes": ["x"]})
        assert has_genome(database, "evoclaw") and not has_genome(database, "bob")
