"""Somebody new types what the README says, in an empty home: all of it must work as it stands.

The section "As a service" is taken apart, and its blocks are run by a shell. Only the port is
another one, so that nothing else on this machine is in the way; the model is the environment's.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.up_process import PATIENCE, UpProcess, up_process

README = Path(__file__).parent.parent.parent / "README.md"
SECTION = re.compile(r"^## As a service\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT = "127.0.0.1:8433"
"""Where the service is if nobody says otherwise."""
STAYS = re.compile(r"^evoclaw up\b[^#\n]*", re.MULTILINE)


@dataclass
class Ran:
    """What came of a block."""

    out: str
    err: str


def blocks() -> list[str]:
    """What the section has a reader type, in order."""
    (section,) = SECTION.findall(README.read_text())
    return BLOCK.findall(section)


def block(*words: str) -> str:
    """The first block that has all of these in it."""
    found = next((one for one in blocks() if all(word in one for word in words)), None)
    assert found is not None, f"the README no longer shows {words}"
    return found


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


async def test_the_readme_commands_work_in_an_empty_home(
    tmp_path: Path,
) -> None:
    async with up_process(tmp_path) as up:
        up.home.rmdir()  # nothing at all is there
        first = block("evoclaw init", "evoclaw up")
        (stays,) = STAYS.findall(first)
        await typed(up, STAYS.sub("", first))
        settings = up.home / "evoclaw.toml"
        assert settings.stat().st_mode & 0o077 == 0
        assert up.home.stat().st_mode & 0o077 == 0

        options = stays.split()[2:]
        await up.launch(*options, edge=True)
        owner = await up.wait_ready()
        await up.wait_online(owner)
        port = owner.url.removeprefix("http://")

        talk = await typed(up, block("evoclaw chat"), b"say Good morning.\n")
        assert "Good morning." in talk.out
        assert "You said: Say hello." in talk.out, "what is piped in is answered too"
        assert "ready" in talk.out

        link = (await typed(up, block("evoclaw page"))).out.strip()
        assert link.startswith(f"{owner.url}/#token="), link

        assert any(PORT in one for one in blocks())
        curl = block("curl", "/v1/runs", "/events").replace(PORT, port)
        watched = await typed(up, curl)
        told = re.findall(r"^event: (\w+)$", watched.out, re.MULTILINE)
        assert (told[0], told[-1]) == ("run_started", "run_finished")
        assert '"text":"You said: Say hello."' in watched.out

        client = block("openai", "chat.completions").replace(PORT, port)
        assert (await typed(up, client)).out.strip() == "You said: Say hello."

        for one in blocks():
            assert any(word in one for word in ("init", "chat", "page", "curl", "openai")), (
                f"the README shows something that is not tried out here: {one}"
            )
        assert await up.stop() == 0
        assert "Traceback" not in up.output(), up.output()
        assert up.models.count("Say hello.") == 3
