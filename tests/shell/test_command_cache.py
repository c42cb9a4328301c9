"""Commands that were read before."""

from __future__ import annotations

import pytest

from evoclaw.shell.commands import (
    MAX_CACHED_COMMAND_CHARS,
    clear_command_cache,
    read_cached_command,
    read_command,
)

COMMANDS = (
    "git status --short",
    "cat x | head -50",
    "cd src && grep -rn 'def ' a/b | sort > ../out.txt 2>&1 || echo none",
    "A=1 B=$(date) ./run.sh > run.sh",
    "x=a; cat $x > $x.txt & wait",
    "cat <<EOF\n$HOME\nEOF",
    "",
    "# only a comment",
    "if then",
    "echo " + "long " * MAX_CACHED_COMMAND_CHARS,
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cached_analysis_equals_a_fresh_one(command: str) -> None:
    clear_command_cache()
    expected = read_command(command, "/w", "/home/me")
    assert [read_cached_command(command, "/w", "/home/me") for _ in range(3)] == [expected] * 3


def test_the_command_cache_depends_on_folder_and_home() -> None:
    command = "cat x ~/y"
    assert [
        [place.pattern for place in read_cached_command(command, cwd, home).places]
        for cwd, home in (("/w", "/home/me"), ("/v", "/home/me"), ("/w", "/home/you"))
    ] == [["/w/x", "/home/me/y"], ["/v/x", "/home/me/y"], ["/w/x", "/home/you/y"]]
