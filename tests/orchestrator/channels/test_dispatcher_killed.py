"""A process that dies while it answers: the next one answers, and nobody is answered twice."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from evoclaw.core.messages import Reply
from evoclaw.orchestrator.channels.inbound import MessageState
from evoclaw.providers.scripted import ScriptedRequest, says
from tests.support.channels import PATIENCE, MemoryChannel, inbound_message, open_channel_harness


def _stuck(_: ScriptedRequest) -> Reply:
    sys.stdout.write("asked\n")
    sys.stdout.flush()
    time.sleep(60)  # the whole process hangs: it can only be killed
    return says("never")


async def _answer_forever(home: Path) -> None:
    async with open_channel_harness(home, _stuck) as made:
        desk = made.dispatcher([MemoryChannel()])
        async with desk.serving():
            await desk.accept(inbound_message("how long?"))
            await asyncio.Event().wait()


@pytest.mark.process
async def test_a_message_is_answered_once_after_its_process_was_killed(
    tmp_path: Path,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"asked\n"
    finally:
        process.kill()
        await process.wait()

    box = MemoryChannel()
    async with open_channel_harness(tmp_path, says("twelve"), says("again")) as made:
        desk = made.dispatcher([box])
        async with desk.serving():
            (answer,) = await box.wait_for_answers()
            again = await desk.accept(inbound_message("how long?"))

        assert (answer.state, answer.text) == (MessageState.ANSWER, "twelve")
        assert (again.fresh, again.run_id) == (False, answer.run_id)
        assert len(await made.runs.list("local")) == 1
        assert len(made.model.requests) == 1


if __name__ == "__main__":
    signal.alarm(60)
    asyncio.run(_answer_forever(Path(sys.argv[1])))
