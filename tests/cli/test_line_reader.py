"""Lines that a person types at a prompt."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.support.command_line import Shell
from tests.support.terminal import terminal

ROOT = Path(__file__).parents[2]


async def test_ctrl_c_between_prompt_and_read_is_not_lost(tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    os.mkfifo(trigger)
    program = (sys.executable, "-m", "tests.cli.prompting", str(tmp_path))
    async with terminal(Shell(tmp_path, ROOT), program=program) as here:
        await here.expect("> ")
        await asyncio.to_thread(trigger.write_bytes, b"now")
        await here.expect("read: interrupted")
        assert await here.wait_exit() == 0


async def test_a_line_is_read_as_typed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trigger")
    program = (sys.executable, "-m", "tests.cli.prompting", str(tmp_path))
    async with terminal(Shell(tmp_path, ROOT), program=program) as here:
        await here.expect("> ")
        for letter in "one by one":
            here.type(letter)
            await here.expect(letter)
        here.type("\n")
        await here.expect("read: one by one")
        assert await here.wait_exit() == 0
