"""Completion, by the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
from argparse import ArgumentParser
from pathlib import Path

import pytest

from evoclaw.cli.completion import script
from evoclaw.cli.main import parser
from evoclaw.cli.tree import tree
from tests.support.command_line import Shell
from tests.support.terminal import terminal


def completed(words: str, folder: Path) -> list[str]:
    """What bash offers for the last word."""
    typed = words.split(" ")
    (folder / "c.bash").write_text(script("bash", parser()))
    quoted = " ".join(f"'{word}'" for word in typed)
    line = (
        f"source c.bash; COMP_WORDS=({quoted}); "
        f"COMP_CWORD={len(typed) - 1}; _evoclaw; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", line], cwd=folder, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.split()


def test_bash_offers_commands_actions_options_and_choices(tmp_path: Path) -> None:
    assert completed("evoclaw sk", tmp_path) == ["skills"]
    assert completed("evoclaw agents in", tmp_path) == ["invite"]
    assert completed("evoclaw agents --json re", tmp_path) == ["revoke"]
    assert completed("evoclaw run --mo", tmp_path) == ["--model"]
    assert completed("evoclaw up --engine n", tmp_path) == ["nats"]
    assert completed("evoclaw completion ", tmp_path) == ["bash", "zsh", "fish"]
    assert completed("evoclaw run --model sk", tmp_path) == [], "a value is not a command"
    assert completed("evoclaw audit search --", tmp_path)[:2] == ["--help", "--tool"]


def test_every_command_of_the_tree_is_known_to_every_shell() -> None:
    commands = {command.path for command in tree(parser())}
    assert {"evoclaw chat", "evoclaw token new", "evoclaw mcp serve"} <= commands
    for shell in ("bash", "zsh", "fish"):
        text = script(shell, parser())
        assert not [path for path in commands if f"'{path}'" not in text and path != "evoclaw"]


def test_quotes_in_explanations_do_not_break_a_script(tmp_path: Path) -> None:
    top = ArgumentParser(prog="evoclaw")
    top.add_subparsers().add_parser("one", help="it's").add_argument(
        "--odd", help='it\'s 100%% "odd" $(rm -r /) `x` \\'
    )
    for shell in ("bash", "fish"):
        if shutil.which(shell) is None:
            continue
        (tmp_path / "script").write_text(script(shell, top))
        done = subprocess.run(
            [shell, "-n", "script"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_commands_and_options_with_what_they_do(tmp_path: Path) -> None:
    (tmp_path / "evoclaw.fish").write_text(script("fish", parser()))

    def offered(typed: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source evoclaw.fish; complete -C '{typed}'"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    assert offered("evoclaw sk") == ["skills\tsee, check, make and add skills"]
    assert offered("evoclaw agents inv")[0].startswith("invite\t")
    assert offered("evoclaw up --engine n") == ["nats\twhich broker"]
    assert [one.split("\t")[0] for one in offered("evoclaw chat --s")] == ["--session"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
async def test_zsh_completes_at_the_keyboard(tmp_path: Path) -> None:
    (tmp_path / "c.zsh").write_text(script("zsh", parser()))
    shell = Shell(tmp_path, tmp_path)
    async with terminal(shell, program=("zsh", "-f", "-i")) as here:
        here.type("PS1=ready'> '; autoload -U compinit; compinit -D -u; source c.zsh\n")
        await here.sees("ready> ")
        here.type("echo evoclaw; evoclaw ski\t")
        await here.sees("evoclaw skills")
