"""A newcomer types what the README and the quickstart say, in an empty home: all of it works.

The blocks are taken out of the pages and run by a shell. Only the port and the model are others,
so that nothing else on this machine interferes.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.up_process import PATIENCE, UpProcess, up_process

ROOT = Path(__file__).parents[2]
README, QUICKSTART = ROOT / "README.md", ROOT / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT = "127.0.0.1:8433"
"""Where the service is unless it is told otherwise."""
UP = re.compile(r"^evoclaw up\b[^#\n]*", re.MULTILINE)
INSTALLS = ("pipx install", "pipx runpip", "pip install", "make demo", "make test")
"""What is tried elsewhere: test_install.py, test_docs.py and the demo itself."""
QUESTION = "What does note.txt say?"


@dataclass
class Ran:
    """What came of a block."""

    out: str
    err: str


def section(page: Path, title: str) -> str:
    """A section of a page, up to the next one of its level."""
    (found,) = re.findall(
        rf"^## {title}\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL
    )
    return found


def blocks(text: str, language: str = "sh") -> list[str]:
    """What a reader is to type, in order."""
    return [content for kind, content in BLOCK.findall(text) if kind == language]


def block(text: str, *words: str) -> str:
    """The first block that has all of these in it."""
    found = next((one for one in blocks(text) if all(word in one for word in words)), None)
    assert found is not None, f"the page no longer shows {words}"
    return found


def shown() -> Iterator[tuple[str, list[str]]]:
    """Each command of the README's console blocks, and the output below it."""
    for content in blocks(README.read_text(), "console"):
        for part in content.split("$ ")[1:]:
            command, *output = part.rstrip("\n").split("\n")
            yield command, output


async def typed(up: UpProcess, text: str, stdin: bytes = b"") -> Ran:
    """Have a shell run a block from its first line to its last; each must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", text),
        cwd=up.workspace,
        env={**up.shell.environment, "PATH": path},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate(stdin)
    assert process.returncode == 0, f"{text}\n{out.decode()}\n{err.decode()}"
    return Ran(out.decode(), err.decode())


async def test_the_readme_commands_print_what_the_readme_shows(tmp_path: Path) -> None:
    commands = dict(shown())
    run = next(command for command in commands if QUESTION in command)
    explain = next(command for command in commands if "policy explain" in command)
    assert set(commands) == {run, explain, "evoclaw up"}
    async with up_process(tmp_path) as up:
        up.home.rmdir()  # nothing at all is there
        up.workspace.joinpath("note.txt").write_text("The door code is 4711.\n")
        up.models.scripts[QUESTION] = 'call read {"path": "note.txt"}\nsay The door code is 4711.'
        ran = await typed(up, run.replace("--model embedded ", ""))
        model, *steps, _tokens = ran.err.splitlines()[:-1]
        expected = [line for line in commands[run] if line != ran.out.rstrip()]
        assert model.startswith("model ") and expected[0].startswith("model ")
        assert steps == expected[1:-1]
        assert ran.err.splitlines()[-1].startswith("recorded in ")

        assert (await typed(up, explain)).out.splitlines() == commands[explain]

        await up.launch(edge=True)
        owner = await up.wait_ready()
        await up.wait_online(owner)
        printed = re.sub(r"127\.0\.0\.1:\d+", "HOST", up.output()).splitlines()
        for line in commands["evoclaw up"]:
            assert re.sub(r"127\.0\.0\.1:\d+", "HOST", line) in printed
        assert await up.stop() == 0


def test_every_other_command_of_the_readme_installs_or_belongs_to_a_clone() -> None:
    lines = [line for text in blocks(README.read_text()) for line in text.splitlines()]

    assert lines and all(line.startswith(INSTALLS) for line in lines)


async def test_the_commands_of_the_quickstart_work_in_an_empty_home(tmp_path: Path) -> None:
    service = section(QUICKSTART, "7. Use the service")
    async with up_process(tmp_path) as up:
        up.home.rmdir()  # nothing at all is there
        first = block(service, "evoclaw init", "evoclaw up")
        (stays,) = UP.findall(first)
        await typed(up, UP.sub("", first))
        settings = up.home / "evoclaw.toml"
        assert settings.stat().st_mode & 0o077 == 0
        assert up.home.stat().st_mode & 0o077 == 0

        await up.launch(*stays.split()[2:], edge=True)
        owner = await up.wait_ready()
        await up.wait_online(owner)
        port = owner.url.removeprefix("http://")

        talk = await typed(up, block(service, "evoclaw chat"), b"say Good morning.\n")
        assert "Good morning." in talk.out
        assert "You said: Say hello." in talk.out, "what is piped in is answered too"
        assert "ready" in talk.out

        link = (await typed(up, block(service, "evoclaw page"))).out.strip()
        assert link.startswith(f"{owner.url}/#token="), link

        assert PORT in service
        curl = block(service, "curl", "/v1/runs", "/events").replace(PORT, port)
        watched = await typed(up, curl)
        told = re.findall(r"^event: (\w+)$", watched.out, re.MULTILINE)
        assert (told[0], told[-1]) == ("run_started", "run_finished")
        assert '"text":"You said: Say hello."' in watched.out

        client = block(service, "openai", "chat.completions").replace(PORT, port)
        assert (await typed(up, client)).out.strip() == "You said: Say hello."

        for text in blocks(service):
            assert any(word in text for word in ("init", "chat", "page", "curl", "openai")), (
                f"the quickstart shows something that is not tried out here: {text}"
            )
        assert await up.stop() == 0
        assert "Traceback" not in up.output(), up.output()
        assert up.models.count("Say hello.") == 3
