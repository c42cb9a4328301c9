"""`evoclaw` alone: from an empty home to the first answer, at a real terminal."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.config import read_evoclaw_toml
from evoclaw.providers.models.local import server_installed
from tests.support.command_line import Shell
from tests.support.model_server import NAME, ModelServer, model_server
from tests.support.terminal import CTRL_C, Terminal, terminal


@asynccontextmanager
async def newcomer(
    folder: Path, env: dict[str, str] | None = None
) -> AsyncGenerator[tuple[Terminal, ModelServer, Shell]]:
    """A person with an empty home, at a terminal in an empty folder."""
    home, workspace = folder / "home", folder / "work"
    home.mkdir()
    workspace.mkdir()
    async with model_server() as models:
        models.scripts["Say hello in one word."] = "say Hello!"
        models.scripts["What is in this folder?"] = "say Nothing yet."
        url = f"http://127.0.0.1:{models.port}/v1"
        given = models.env if env is None else {"OPENAI_BASE_URL": url, **env}
        # No other model of the machine that runs the tests.
        shell = Shell(home, workspace, {"OLLAMA_HOST": "127.0.0.1:9", **given})
        async with terminal(shell) as seen:
            yield seen, models, shell


def settings(shell: Shell) -> Path:
    return shell.home / ".evoclaw" / "evoclaw.toml"


async def test_a_newcomer_has_an_answer_after_four_inputs(tmp_path: Path) -> None:
    async with newcomer(tmp_path) as (seen, models, shell):
        await seen.expect("Which model should it use?")
        await seen.expect("set by EVOCLAW_MODEL")
        for shown in ("Number [1]: ", "Folder [", "Service, y or n [n]: ", "Question ["):
            await seen.expect(shown)
            seen.type("\n")
        await seen.expect("Nothing yet.")
        assert await seen.wait_exit() == 0
    assert models.count("Say hello") == 1, "the model was tested with a real request"
    found = read_evoclaw_toml(settings(shell), {"HOME": str(shell.home)})
    assert [agent.model for agent in found.agents] == [f"vllm/{NAME}"]


async def test_a_pasted_key_is_tested_stored_for_its_owner_and_used_by_later_commands(
    tmp_path: Path,
) -> None:
    async with newcomer(tmp_path, {}) as (seen, models, shell):
        await seen.expect("1  paste an API key")
        await seen.expect("Number [1]: ")
        seen.type("1\n")
        await seen.expect("The key (it is not shown): ")
        seen.type("sk-secret-of-the-test\n")
        await seen.expect("it works: “Hello!”")
        for shown in ("Folder [", "Service, y or n [n]: ", "Question ["):
            await seen.expect(shown)
            seen.type("\n")
        await seen.expect("Nothing yet.")
        assert await seen.wait_exit() == 0
        assert "sk-secret" not in seen.seen
        file = shell.home / ".evoclaw" / "environment"
        assert file.read_text() == "OPENAI_API_KEY=sk-secret-of-the-test\n"
        assert file.stat().st_mode & 0o777 == 0o600
        before = models.count("say again")
        ran = await shell.type("run", "say again")
        assert (ran.code, models.count("say again")) == (0, before + 1)
        file.chmod(0o644)
        refused = await shell.type("run", "say again")
        assert refused.code == 2 and "chmod go=" in refused.err


async def test_later_runs_use_the_model_of_the_settings_rather_than_one_that_is_found(
    tmp_path: Path,
) -> None:
    async with newcomer(tmp_path) as (_, models, shell):
        await shell.type("init", "--model", f"vllm/{NAME}")
        shell.env = {
            "VLLM_BASE_URL": models.env["VLLM_BASE_URL"],
            "ANTHROPIC_API_KEY": "would-be-found-first",
        }
        ran = await shell.type("run", "say from the settings")
        assert (ran.code, ran.out) == (0, "from the settings\n"), ran.err


async def test_a_model_that_does_not_answer_is_reported_and_another_one_can_be_chosen(
    tmp_path: Path,
) -> None:
    dead = {"EVOCLAW_MODEL": "vllm/dead", "VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
    async with newcomer(tmp_path, dead) as (seen, _, shell):
        await seen.expect("Number [1]: ")
        seen.type("1\n")
        await seen.expect("the model does not work: ")
        await seen.expect("Number [1]: ")
        seen.type("7\n")
        later = 4 if server_installed() else 3  # a model to download is offered with the server
        await seen.expect(f"type a number from 1 to {later}")
        await seen.expect("Number [1]: ")
        seen.type(f"{later}\n")
        await seen.expect("Folder [")
        seen.type("\n")
        await seen.expect("Choose a model later")
        assert await seen.wait_exit() == 0
        assert "#model = " in settings(shell).read_text()


async def test_leaving_changes_nothing_and_the_next_start_asks_again(tmp_path: Path) -> None:
    async with newcomer(tmp_path) as (seen, _, shell):
        await seen.expect("Number [1]: ")
        seen.type(CTRL_C)
        assert await seen.wait_exit() == 130
        assert not settings(shell).exists()
        async with terminal(shell) as again:
            await again.expect("Which model should it use?")


async def test_without_a_terminal_or_with_settings_the_help_is_printed(tmp_path: Path) -> None:
    shell = Shell(tmp_path, tmp_path)
    piped = await shell.type()
    assert piped.code == 2 and "Usage: evoclaw" in piped.err
    await shell.type("init")
    async with terminal(shell) as seen:
        await seen.expect("Usage: evoclaw")
