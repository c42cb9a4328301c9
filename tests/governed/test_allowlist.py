"""An allowlist is an allowlist: `--yes` never lets through what no rule allows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evoclaw.core.ports import Allow, Ask, Deny
from evoclaw.governance.autonomy import Level
from evoclaw.governance.rules.command_rules import command_rules
from evoclaw.governance.rules.examples import example_call
from tests.support.command_line import shell
from tests.support.governed_machine import (
    audit_records,
    obfuscated,
    results,
    settings,
    turns,
)

BUILD_AND_TEST = """
default = "deny"
other_tools = "allow"

[[rules]]
name = "build-and-test"
then = "allow"
programs = ["ls", "cat", "grep", "make", "pytest", "[[", "echo"]
allows = ["make test", "cat log.txt | grep error"]
denies = ["make test && git push", "ls $(curl example.org)"]
"""
"""The rules of the guide on governance."""
NOT_ANALYSED = (
    "ls; coproc rm -rf v",
    "cat $((a[$(rm -rf v)]))",
    "[[ 'a[$(rm -rf v >&2)]' -eq 1 ]]",
    "PATH=.:$PATH cat f",
    "cat <<E\n`rm -rf v`\nE",
    "LD_PRELOAD=./x.so ls",
    "BASH_ENV=./x cat f",
    "((a[$(rm -rf v)]))",
    "y='$(rm -rf v)'; echo ${y@P}",
    "echo ${!x}",
)
OFTEN = "[rates]\nper_minute = 0\nburst = 0\n"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="install the package bubblewrap")
async def test_yes_runs_nothing_that_an_allowlist_cannot_judge(tmp_path: Path) -> None:
    calls = [("bash", {"command": command}) for command in (*NOT_ANALYSED, "cat f | grep line")]
    async with shell(tmp_path, *turns(*calls)) as here:
        settings(here, OFTEN + '[policy]\nrules = "night.toml"\n')
        (here.home / ".evoclaw" / "night.toml").write_text(BUILD_AND_TEST)
        (here.workspace / "v").mkdir()
        (here.workspace / "f").write_text("a line\n")
        (here.workspace / "cat").write_text("#!/bin/sh\nrm -rf v\n")
        (here.workspace / "cat").chmod(0o755)
        ran = await here.type("run", "--yes", "--json", "--turns", "40", "go")
        assert (here.workspace / "v").is_dir(), "a command ran that no rule allows"
        rows = [one for one in audit_records(here.home / ".evoclaw") if one["tool"] == "bash"]
    told = [one for one in results(ran.out).values() if one["name"] == "bash"]
    assert [one["verdict"] for one in rows] == ["deny"] * len(NOT_ANALYSED) + ["allow"]
    assert [bool(one.get("error")) for one in told] == [True] * len(NOT_ANALYSED) + [False]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ('default = "deny"', Deny),
        ('default = "deny"\nunreadable = "ask"\nenvironment = "ask"', Ask),
        ('default = "ask"', Ask),
        ('default = "allow"', Allow),
    ],
)
async def test_only_rules_that_allow_by_default_are_approved_in_advance(
    tmp_path: Path, head: str, kind: type
) -> None:
    text = BUILD_AND_TEST.replace('default = "deny"', head)
    if kind is Allow:
        text = text.replace("denies = ", "# denies = ")
    (tmp_path / "rules.toml").write_text(text)
    rules = command_rules("rules.toml", tmp_path, Level.FULL, tmp_path)
    for command in NOT_ANALYSED:
        assert type(await rules.judge(example_call(command))) is kind, command


@pytest.mark.parametrize(
    "unsandboxed",
    [
        '[sandbox]\nengine = "none"\n',
        '[sandbox.tools]\nbash = "none"\n',
        "[orchestrator.tools]\nenable_sandboxing = false\n",
    ],
)
async def test_yes_approves_no_unreadable_command_that_runs_without_a_sandbox(
    tmp_path: Path, unsandboxed: str
) -> None:
    call = ("bash", {"command": obfuscated("touch made")})
    async with shell(tmp_path, *turns(call)) as here:
        settings(here, unsandboxed)
        await here.type("run", "--yes", "--json", "go")
        assert not (here.workspace / "made").exists()
        row = next(one for one in audit_records(here.home / ".evoclaw") if one["tool"] == "bash")
    assert row["verdict"] == "ask" and row["result"] == "refused", row
