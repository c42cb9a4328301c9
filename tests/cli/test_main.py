"""The command line as a whole: its groups, its help texts, its errors, its start."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from evoclaw.cli import exits
from evoclaw.cli.examples import EXAMPLES
from evoclaw.cli.main import GROUPS, command_line, main
from evoclaw.cli.terminal_text import format_table, has_colour
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.events import StopReason
from evoclaw.core.suggestions import did_you_mean


def tree(at: click.Context) -> Iterator[click.Context]:
    """A command and all below it."""
    yield at
    if isinstance(at.command, click.Group):
        for name in at.command.list_commands(at):
            command = at.command.get_command(at, name)
            assert command is not None, name
            yield from tree(click.Context(command, parent=at, info_name=name))


def everything() -> list[click.Context]:
    settings = command_line.context_settings
    return list(tree(click.Context(command_line, info_name="evoclaw", **settings)))


def test_every_command_is_in_one_group() -> None:
    assert list(GROUPS) == ["Use", "Machines", "Safety", "Improve", "Look into", "Set up"]
    names = [name for commands in GROUPS.values() for name in commands]
    assert len(names) == len(set(names)) == 45
    leaves = [at for at in everything() if not isinstance(at.command, click.Group)]
    assert len(leaves) > 75


def test_help_texts_are_a_capital_verb_on_one_line_without_a_full_stop() -> None:
    wrong: list[str] = []
    for at in everything():
        texts = {at.command_path: at.command.help or ""}
        for param in at.command.get_params(at):
            record = param.get_help_record(at)
            texts[f"{at.command_path} {param.opts[0]}"] = "" if record is None else record[1]
        wrong += [
            f"{where}: {text!r}"
            for where, text in texts.items()
            if not text or text[0].islower() or text.rstrip().endswith(".") or "\n" in text
        ]
    assert not wrong, "\n".join(wrong)


def test_help_lists_the_commands_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == exits.OK
    shown = capsys.readouterr().out
    assert main(["--help"]) == exits.OK
    assert capsys.readouterr().out == shown
    titles = [line[:-1] for line in shown.splitlines() if line.endswith(":")]
    assert titles == ["Options", *GROUPS]
    assert "  edge        Run an edge agent on this machine\n" in shown


def test_help_command_prints_the_same_as_the_help_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["run"], ["edges", "invite"], ["edge", "join"]):
        assert main(["help", *words]) == exits.OK
        shown = capsys.readouterr().out
        assert main([*words, "-h"]) == exits.OK
        assert capsys.readouterr().out == shown
    assert main(["help", "agents", "nothing"]) == exits.MISUSED


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pnig", "No such command 'pnig'. Did you mean 'ping'? See `evoclaw --help`"),
        ("agents lst", "No such command 'lst'. Did you mean 'list'? See `evoclaw agents --help`"),
        ("runs --jsn", "No such option '--jsn'. Did you mean '--json'? See `evoclaw runs --help`"),
        ("ping", "Missing argument 'AGENT'; see `evoclaw ping --help`"),
        ("fork x", "Missing option '--at'; see `evoclaw fork --help`"),
        ("run --yes --read-only x", "--yes and --read-only cannot be used together; see"),
        ("run --turns 0 x", "Invalid value for '--turns': 0 is not in the range x>=1; see"),
        ("up --engine x", "'x' is not one of 'nats', 'mosquitto'; see `evoclaw up --help`"),
        ("runs cancel", "Missing argument 'ID'; see `evoclaw runs cancel --help`"),
    ],
)
def test_a_wrong_command_line_is_answered_with_one_line_of_advice(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == exits.MISUSED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("evoclaw: ") and told in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("mcp",), ("audit",), ("policy",)])
def test_without_a_command_the_commands_are_listed_and_the_exit_code_is_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == exits.MISUSED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"Usage: {' '.join(('evoclaw', *words))} [OPTIONS]")


def test_an_option_before_the_subcommand_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    for words in (["--json"], ["list", "--json"], ["--json", "list"]):
        assert main(["approvals", *words]) == exits.OK
        assert capsys.readouterr().out == "[]\n"


def test_every_stop_reason_has_an_exit_code() -> None:
    assert set(exits.BY_STOP) == set(StopReason)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["nothing"]])
def test_help_version_and_unknown_commands_import_no_command_modules(words: list[str]) -> None:
    code = (
        "import sys; from evoclaw.cli.main import main; code = main(sys.argv[1:]); "
        "loaded = {'msgspec', 'asyncio', 'evoclaw.core.events', 'evoclaw.wiring'} & {*sys.modules};"
        "print(sorted(loaded), file=sys.stderr); sys.exit(bool(loaded))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for group in GROUPS.values() for name in group])
def test_every_command_has_examples_that_it_understands(name: str) -> None:
    assert EXAMPLES[name]
    for example in EXAMPLES[name]:
        program, *arguments = shlex.split(example)
        assert program == "evoclaw" and arguments[0] == name
        context = click.Context(command_line)
        command: click.Command = command_line
        while isinstance(command, click.Group) and arguments and arguments[0][0] != "-":
            found = command.get_command(context, arguments[0])
            assert found is not None, example
            command, arguments = found, arguments[1:]
        command.make_context(name, arguments)


CONFIRMATIONS = frozenset(
    {
        *("sessions rename", "sessions delete", "runs cancel", "runs steer", "workflows cancel"),
        *("workflows answer", "edge join", "edges approve", "edges revoke", "edges shutdown"),
        *("approvals approve", "approvals deny", "receipts export", "token revoke", "config set"),
        *("config unset", "skills new", "skills add", "channels remove-user", "channels unpair"),
        *("genome export", "mcp login", "mcp logout"),
    }
)
"""Commands that only confirm what they did; their exit code says the same."""
DOCUMENTS = frozenset(
    {
        "runs records",
        "config reference",
        "completion",
        "systemd",
        "help",
        "receipts verify",
        "genome verify",
    }
)
"""Commands that print a file, a program or a text, which is what they are for."""
SERVERS = frozenset({"up", "mcp serve", "acp"})


def test_every_command_that_prints_data_can_print_json() -> None:
    leaves = [at for at in everything() if not isinstance(at.command, click.Group)]
    without = {
        at.command_path.removeprefix("evoclaw ")
        for at in leaves
        if not any("--json" in param.opts for param in at.command.params)
    }
    assert without == {*CONFIRMATIONS, *DOCUMENTS, *SERVERS}


def test_the_exit_codes_are_explained_in_the_help_and_in_the_guide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    codes = {value for name, value in vars(exits).items() if name.isupper() and type(value) is int}
    assert set(exits.MEANINGS) == codes
    assert main(["help", "exit-codes"]) == exits.OK
    shown = capsys.readouterr().out.splitlines()
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "chat.md").read_text()
    for code, meaning in exits.MEANINGS.items():
        assert f"{code:>5}  {meaning}" in shown
        assert f"| {code} | {meaning} |" in guide
    assert len(shown) == len(codes) + 1
    assert {stop.value for stop in StopReason} == set(exits.BY_STOP)
    for stop, code in exits.BY_STOP.items():
        assert f"| `{stop}` | {code} |" in guide


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["rnus"], "'runs'"),
        (["runs", "shwo"], "'show'"),
        (["runs", "list", "--jsn"], "'--json'"),
        (["config", "pth"], "'path'"),
    ],
)
def test_a_mistyped_command_or_option_gets_a_suggestion(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == exits.MISUSED
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_tables_are_aligned_and_coloured_only_when_asked() -> None:
    rows = [("名前", "online", "x"), ("bob", "offline", "y")]
    plain = format_table(rows)
    assert plain == ["名前  online   x", "bob   offline  y"]
    coloured = format_table(rows, colour=True)
    assert "\x1b[32monline\x1b[0m   x" in coloured[0] and "\x1b[31moffline" in coloured[1]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("", "")])
def test_colours_are_left_out_where_they_are_not_wanted(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colour(Screen()) and not has_colour(io.StringIO())
    if name:
        monkeypatch.setenv(name, value)
        assert not has_colour(Screen())


def test_a_wrong_name_gets_the_most_similar_one() -> None:
    assert did_you_mean("Garaeg", ["house", "garage"]) == "; did you mean 'garage'?"
    assert did_you_mean("x", ["house", "garage"]) == ""
    assert "did you mean 'reviewer'?" in str(AgentNotFound("reviwer", ["evoclaw", "reviewer"]))
