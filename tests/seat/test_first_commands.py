"""The first commands of a new user: private files, plain errors, no traceback."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.support.command_line import Shell, Typed
from tests.support.ports import free_port
from tests.support.up_process import SETTINGS, up_process

WITHOUT_SERVER = """
import sys
sys.modules.update(dict.fromkeys(("litestar", "uvicorn", "prometheus_client")))
"""


async def typed(shell: Shell, *arguments: str) -> Typed:
    """Type a command in a process of its own, whose files others may read by default."""
    process = await shell.start(*arguments)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Typed(process.returncode, out.decode(), err.decode())


def open_files(folder: Path) -> list[str]:
    """What others may read or change in a folder, itself included."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


@pytest.mark.slow
async def test_in_a_home_folder_without_bubblewrap_commands_are_refused_and_nothing_breaks(
    tmp_path: Path,
) -> None:
    programs, home = tmp_path / "bin", tmp_path / "home"
    for folder in (programs, home):
        folder.mkdir()
    for name in ("sh", "bash", "cat"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    env = {"PATH": str(programs), "EVOCLAW_MODEL": "vllm/x", "VLLM_BASE_URL": "http://127.0.0.1:9"}
    shell = Shell(home, home, env)

    # The first command: the model does not answer, and its error is printed once.
    ran = await typed(shell, "run", "hello")
    said = ran.out + ran.err
    assert ran.code != exits.OK
    assert "Traceback" not in said
    assert said.count("Check that the server is up") == 1, said
    assert open_files(home / ".evoclaw") == []

    tools = await typed(shell, "tools")
    assert tools.code == exits.OK, tools.err
    assert "no command can run here: 'native' cannot hide" in tools.err
    assert "install bubblewrap" in tools.err

    doctor = await typed(shell, "doctor")
    assert doctor.code == exits.OK, doctor.err
    assert "private to you" in doctor.out
    assert "chmod" not in doctor.out
    assert open_files(home / ".evoclaw") == []


async def test_up_without_the_packages_of_the_service_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_SERVER)
    shell = Shell(tmp_path, tmp_path, {"PYTHONPATH": str(tmp_path)})
    up = await typed(shell, "up", "--engine", "mosquitto")
    assert up.code == exits.MISUSED
    assert "pip install 'evoclaw[server]'" in up.err
    assert "--no-api" in up.err
    assert "Traceback" not in up.err


async def test_a_broker_and_a_model_server_that_do_not_answer_are_reported_with_the_reason(
    tmp_path: Path,
) -> None:
    async with up_process(tmp_path) as up:
        port = free_port()
        up.configure(f'{SETTINGS}\n[broker]\nurl = "mqtt://127.0.0.1:{port}"\n')
        # A model server without a key: what it serves is used, or the user is told; no other model.
        del up.shell.env["EVOCLAW_MODEL"]
        up.shell.env["OPENAI_BASE_URL"] = f"http://127.0.0.1:{port}/v1"
        await up.start()
        await up.wait_for_output("does not list its models; choose one with --model openai/<model>")
        await up.wait_for_output(f"broker on mqtt://127.0.0.1:{port} (named by [broker]")
        await up.wait_for_output(f"broker 127.0.0.1:{port}: not connected")
        assert up.output().count("cannot be reached") == 1, up.output()
