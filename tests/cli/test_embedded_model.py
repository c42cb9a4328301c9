"""`[embedded]` of the settings, as a user meets it: a real server with a tiny model."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import msgspec
import psutil
import pytest

from evoclaw.core.history import History
from evoclaw.core.messages import user
from evoclaw.core.ports import Request
from evoclaw.providers.embedded_child import ServerSpec
from evoclaw.providers.models.local import server_installed
from tests.settings.edge_rows import NAME, provider_of
from tests.settings.rows import built
from tests.support.command_line import Shell, shell
from tests.support.tiny_model import write_tiny_model
from tests.support.up_process import SETTINGS, start_run, up_process
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(
    not server_installed(), reason="needs the embedded server: pip install xllamacpp"
)


def tiny_model(folder: Path) -> str:
    """The name of a model file that is small enough for a test."""
    return f"local:{write_tiny_model(folder / 'tiny.gguf')}"


def configure(where: Shell, text: str) -> None:
    settings = where.home / ".evoclaw" / "evoclaw.toml"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(text)


def servers_of(pid: int) -> list[ServerSpec]:
    """What the embedded servers below a process serve."""
    found: list[ServerSpec] = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if "evoclaw.providers.embedded_child" in command:
            found.append(msgspec.json.decode(command[-1], type=ServerSpec))
    return found


async def test_threads_slots_and_context_tokens_reach_the_server(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        here.env["EVOCLAW_MODEL"] = tiny_model(tmp_path)
        configure(here, "[embedded]\nthreads = 1\nslots = 3\ncontext_tokens = 3000\n")
        process = await here.start("run", "--tools", "read", "hello")
        served: list[ServerSpec] = []

        def seen() -> bool:
            served.extend(servers_of(process.pid))
            return bool(served)

        try:
            await until(seen, say="the server runs")
        finally:
            process.terminate()
            await asyncio.wait_for(process.communicate(), 60)
    spec = served[0]
    assert (spec.threads, spec.slots, spec.context_tokens) == (1, 3, 3000)


async def test_a_context_beyond_that_of_the_model_is_an_error_with_the_key_to_change(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path) as here:
        here.env["EVOCLAW_MODEL"] = tiny_model(tmp_path)
        configure(here, "[embedded]\ncontext_tokens = 5000\n")
        ran = await here.type("run", "--tools", "read", "hello")
    assert ran.code != 0
    assert "set context_tokens in [embedded] to at most that, it is 5,000" in ran.out


async def test_the_server_of_a_service_stops_after_idle_s_and_the_next_run_starts_it_again(
    tmp_path: Path,
) -> None:
    async with up_process(tmp_path) as up:
        up.shell.env["EVOCLAW_MODEL"] = tiny_model(tmp_path)
        up.configure(f"{SETTINGS}\n[embedded]\nidle_s = 0.2\nthreads = 1\n")
        owner = await up.start()
        for _ in range(2):
            await start_run(owner, "hello")
            await until(lambda: servers_of(up.pid), say="the server runs")
            await until(lambda: not servers_of(up.pid), say="the idle server has stopped")
        assert await up.stop() == 0


async def test_an_edge_serves_its_model_as_its_own_settings_say(tmp_path: Path) -> None:
    table = "threads = 1\nslots = 3\ncontext_tokens = 3000\nidle_s = 0.1\n"
    text = f'{NAME}[model]\nname = "{tiny_model(tmp_path)}"\n[embedded]\n{table}'
    async with built(tmp_path / "home", "agent.toml", text) as here, asyncio.timeout(60):
        provider = provider_of(await here.edge())
        request = Request(History([user("hello")]), max_tokens=4)
        async with aclosing(provider.stream(request)) as pieces:
            await anext(pieces)
            (spec,) = servers_of(os.getpid())
        assert (spec.threads, spec.slots, spec.context_tokens) == (1, 3, 3000)
        await until(lambda: not servers_of(os.getpid()), say="the idle server has stopped")
