"""What a person sees at a terminal while something takes long."""

from __future__ import annotations

from pathlib import Path

from evoclaw.cli import exits
from tests.support.seat import seat
from tests.support.terminal import terminal
from tests.support.up_process import up_process


async def test_up_and_run_say_what_they_wait_for_and_erase_it_again(tmp_path: Path) -> None:
    async with up_process(tmp_path) as up:
        up.configure()
        options = ("up", "--api-port", "0", "--no-edge")
        async with terminal(up.shell, *options, columns=90) as service:
            await service.until("starting the broker, the service and the edge · ")
            screen = await service.until("broker on mqtt", gone="starting the broker")
            assert not screen.startswith(" ")
        up.models.scripts["think"] = "wait gate 4"
        async with terminal(up.shell, "run", "--no-record", "think", columns=90) as here:
            await up.models.held["gate"].wait()
            up.models.gates["gate"].set()
            await here.expect("completed")
            assert await here.wait_exit() == exits.OK
            assert "preparing the tools of this machine · " in here.seen
            assert "⠋" not in here.screen


async def test_a_run_says_which_model_it_waits_for(tmp_path: Path) -> None:
    async with seat(tmp_path) as place:
        place.up.models.scripts["sleep"] = 'call bash {"command": "sleep 1"}\nsay slept'
        async with terminal(
            place.up.shell, "run", "--yes", "--no-record", "sleep", columns=90
        ) as here:
            await here.until("bash runs · ")
            await here.expect("completed")
            assert await here.wait_exit() == exits.OK
            assert "⠋" not in here.screen and "bash runs" not in here.screen
        piped = await place.type("run", "--yes", "--no-record", "sleep")
        assert piped.code == exits.OK
        assert "⠋" not in piped.err and "\r" not in piped.err
