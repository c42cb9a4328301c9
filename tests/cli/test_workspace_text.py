"""`evoclaw run` in a workspace with an AGENTS.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Shell, reply, shell

NOTE = "Always run `make check` first."


async def asked(here: Shell, *words: str) -> list[dict[str, Any]]:
    """The messages that the run started with, and their labels."""
    ran = await here.type("run", *words, "--json", "Hello")
    events = [json.loads(line)["event"] for line in ran.out.splitlines()]
    (started,) = [event for event in events if event["type"] == "run_started"]
    return started["messages"]


async def test_a_run_reads_agents_md_as_text_of_outsiders(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("Hi.")) as here:
        (here.workspace / "AGENTS.md").write_text(NOTE)
        _, note, task = await asked(here)
    (block,) = note["blocks"]
    assert NOTE in block["text"]
    assert block["label"] == {"untrusted": True, "sources": ["AGENTS.md"]}
    assert task["blocks"] == [{"type": "text", "text": "Hello"}]


@pytest.mark.parametrize(("value", "labels"), [("trusted", [None]), ("off", [])])
async def test_the_setting_decides_how_a_run_reads_agents_md(
    tmp_path: Path, value: str, labels: list[Any]
) -> None:
    async with shell(tmp_path, reply("Hi.")) as here:
        (here.workspace / "AGENTS.md").write_text(NOTE)
        folder = here.home / ".evoclaw"
        folder.mkdir(exist_ok=True)
        config = folder / "evoclaw.toml"
        before = config.read_text() if config.exists() else ""
        config.write_text(f'{before}\n[orchestrator.tools]\nworkspace_text = "{value}"\n')
        _, *notes, _ = await asked(here)
    assert [note["blocks"][0].get("label") for note in notes] == labels


async def test_a_session_reads_agents_md_once(tmp_path: Path) -> None:
    async with shell(tmp_path, reply("Hi."), reply("Again.")) as here:
        (here.workspace / "AGENTS.md").write_text(NOTE)
        first = await asked(here, "--session", "s")
        second = await asked(here, "--session", "s")
    assert json.dumps(first).count("make check") == 1
    assert json.dumps(second).count("make check") == 1
