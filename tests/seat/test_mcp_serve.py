"""`evoclaw mcp serve` as a client starts it: over stdio, with forms and prompts."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.support.mcp_clients import LIMIT, Person, said
from tests.support.skills import guide, write_skill


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def serving(tmp_path: Path, *options: str, **more: Any) -> AsyncGenerator[Client]:
    """A client that starts the command in an empty home."""
    home, folder = tmp_path / "home", tmp_path / "work"
    for path in (home, folder):
        path.mkdir(exist_ok=True)
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "evoclaw", "mcp", "serve", "--folder", str(folder), *options],
        env={"HOME": str(home), "EVOCLAW_HOME": str(home / ".evoclaw"), "PATH": "/usr/bin:/bin"},
    )
    async with Client(stdio_client(command), read_timeout_seconds=3 * LIMIT, **more) as client:
        yield client


@pytest.mark.parametrize(("decision", "written"), [("once", True), ("deny", False)])
async def test_the_user_of_the_client_approves_calls(
    tmp_path: Path, mode: str, decision: str, written: bool
) -> None:
    person = Person("accept", decision=decision)
    note = tmp_path / "work" / "note.txt"
    async with serving(tmp_path, mode=mode, elicitation_callback=person) as mcp:
        done = await mcp.call_tool("write", {"path": "note.txt", "content": "hello"})
    assert note.exists() == written and done.is_error == (not written)
    (form,) = person.asked
    assert form.message.startswith("Allow write?") and "note.txt" in form.message


async def test_a_client_without_forms_is_refused_as_before(tmp_path: Path, mode: str) -> None:
    async with serving(tmp_path, mode=mode) as mcp:
        done = await mcp.call_tool("write", {"path": "note.txt", "content": "hello"})
    assert done.is_error and "serve it with --yes" in said(done)
    assert not (tmp_path / "work" / "note.txt").exists()


async def test_skills_of_the_data_folder_are_prompts(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "home" / ".evoclaw" / "skills"
    write_skill(root, "tidy", SKILL_md=guide("tidy", "Tidies a folder.", "Remove it."))
    async with serving(tmp_path, "--read-only", mode=mode) as mcp:
        names = [prompt.name for prompt in (await mcp.list_prompts()).prompts]
        got = await mcp.get_prompt("tidy", {"task": "my notes"})
    assert "tidy" in names
    texts = [getattr(message.content, "text", "") for message in got.messages]
    assert "Remove it." in texts[0] and "my notes" in texts[1]
