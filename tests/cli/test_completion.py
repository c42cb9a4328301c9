"""Completion, by the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evoclaw.cli.completion import SHELLS, script
from evoclaw.cli.main import GROUPS, command_line
from tests.support.command_line import Shell
from tests.support.terminal import terminal

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""Where the shells find `evoclaw`: the scripts ask it."""


def completed(words: str, folder: Path) -> list[str]:
    """What bash offers for the last word."""
    typed = words.split(" ")
    (folder / "c.bash").write_text(script("bash", command_line))
    quoted = " ".join(f"'{word}'" for word in typed)
    line = (
        f"source c.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(typed) - 1}; "
        "_evoclaw_completion evoclaw; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", line],
        cwd=folder,
        env={"PATH": PATH, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def test_bash_offers_commands_actions_options_and_choices(tmp_path: Path) -> None:
    assert completed("evoclaw sk", tmp_path) == ["skills"]
    assert completed("evoclaw edges in", tmp_path) == ["invite"]
    assert completed("evoclaw edges --json re", tmp_path) == ["revoke"]
    assert completed("evoclaw run --mo", tmp_path) == ["--model"]
    assert completed("evoclaw up --engine n", tmp_path) == ["nats"]
    assert completed("evoclaw completion ", tmp_path) == ["bash", "zsh", "fish"]
    assert completed("evoclaw run --model sk", tmp_path) == [], "a value is not a command"
    assert completed("evoclaw audit search --", tmp_path)[:2] == ["--tool", "--agent"]


def test_completion_offers_every_command(tmp_path: Path) -> None:
    every = [name for commands in GROUPS.values() for name in commands]
    assert completed("evoclaw ", tmp_path) == every


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_script_is_valid_for_its_shell(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evoclaw", "completion", shell],
        env={"PATH": PATH, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == script(shell, command_line)
    assert "_EVOCLAW_COMPLETE" in done.stdout
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(done.stdout)
        read = subprocess.run(
            [shell, "-n", "script"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_commands_and_options_with_descriptions(tmp_path: Path) -> None:
    (tmp_path / "evoclaw.fish").write_text(script("fish", command_line))

    def offered(typed: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source evoclaw.fish; complete -C '{typed}'"],
            cwd=tmp_path,
            env={"PATH": PATH, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    assert offered("evoclaw sk") == ["skills\tList, show, check, create and add skills"]
    assert offered("evoclaw edges inv")[0].startswith("invite\t")
    assert [one.split("\t")[0] for one in offered("evoclaw up --engine n")] == ["nats"]
    assert [one.split("\t")[0] for one in offered("evoclaw chat --s")] == ["--session"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
async def test_zsh_completes_commands_interactively(tmp_path: Path) -> None:
    (tmp_path / "c.zsh").write_text(script("zsh", command_line))
    shell = Shell(tmp_path, tmp_path, {"PATH": PATH})
    async with terminal(shell, program=("zsh", "-f", "-i")) as here:
        here.type("PS1=ready'> '; autoload -U compinit; compinit -D -u; source c.zsh\n")
        await here.expect("ready> ")
        here.type("echo evoclaw; evoclaw ski\t")
        await here.expect("evoclaw skills")
