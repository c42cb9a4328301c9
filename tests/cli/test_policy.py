"""`evoclaw policy`: checking rules, explaining a verdict, comparing two files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evoclaw.cli.policy import check_rules, compare_rules, explain_call
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record, Replied
from evoclaw.core.messages import Reply, ToolCall
from evoclaw.core.tools import Effect, Tool
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.rules.command_rules import CommandRules
from evoclaw.governance.stops import STOPS_FILE_NAME, Stop, StopFile, StopKind
from evoclaw.store.sessions.recordings import Recording
from evoclaw.wiring.local_policies import LocalPolicies
from tests.support.programs.governed_commands import main

TOOLS = (
    Tool("bash", "", {}, aliases=("shell",)),
    Tool("read", "", {}, effect=Effect.READ),
)
RULE = '[[rules]]\nname = "r"\nthen = "deny"\nprograms = ["{0}"]\ndenies = ["{0}"]\n'


def here(folder: Path) -> LocalPolicies:
    """What calls are judged by in a folder."""
    home = folder / "home"
    policies = (Autonomy(Level.FULL), CommandRules(None, folder))
    return LocalPolicies(lambda: policies, TOOLS, None, folder, home, folder / "runs")


def explained(folder: Path, *words: str, as_json: bool = False) -> int:
    return asyncio.run(explain_call(here(folder), words, as_json=as_json))


def test_check_counts_rules_and_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULE.format("x"))
    assert check_rules(here(tmp_path), file, as_json=False) == 0
    assert "1 rules, 1 examples" in capsys.readouterr().out
    assert check_rules(here(tmp_path), None, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == "the shipped rules" and told["rules"] >= 10
    file.write_text(RULE.format("x").replace('["x"]\n', '["y"]\n', 1))
    with pytest.raises(ConfigError, match="fails"):
        check_rules(here(tmp_path), file, as_json=False)


def test_check_names_the_programs_of_an_allowlist_that_start_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.toml"
    rule = 'then = "allow"\nprograms = ["cat", "git", "make", "py*"]\nallows = ["cat x"]\n'
    file.write_text(f'default = "deny"\n[[rules]]\nname = "few"\n{rule}')
    assert check_rules(here(tmp_path), file, as_json=False) == 0
    assert "start any other: git, make, pytest, python, python3." in capsys.readouterr().out
    assert check_rules(here(tmp_path), file, as_json=True) == 0
    assert "cat" not in json.loads(capsys.readouterr().out)["start_others"]


def test_explain_names_policies_effects_and_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(tmp_path, "bash", "cat /etc/shadow > out") == 0
    out = capsys.readouterr().out
    assert "Autonomy       allow" in out
    assert "CommandRules   deny rule:keys-and-passwords" in out
    assert "reads: /etc/shadow" in out and f"writes: {tmp_path}/out" in out
    assert explained(tmp_path, "read", "path=src/x", as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in told["policies"]] == ["allow", "allow"]
    assert told["effects"]["reads"] == [f"{tmp_path}/src/x"]
    assert [step["name"] for step in told["pipeline"] if step["stage"] == "before"][0] == "Stops"
    assert "before Stops, ToolStatus, ForwardedTools" in out


def test_explain_accepts_a_call_in_three_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = '{"tool": "read", "arguments": {"path": "/etc/shadow"}}'
    for words in ([call], ["read", "path=/etc/shadow"], ["cat", "/etc/shadow"]):
        explained(tmp_path, *words)
        assert "deny rule:keys-and-passwords" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        explained(tmp_path, "read", "x")
    with pytest.raises(ConfigError, match="cannot read the call"):
        explained(tmp_path, "{x")


def test_diff_replays_recorded_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judging = here(tmp_path)
    recording = Recording(judging.runs / "one.jsonl")
    calls = tuple(
        ToolCall(str(index), name, arguments)
        for index, (name, arguments) in enumerate(
            [("shell", '{"command": "x 1"}'), ("bash", '{"command": "y"}'), ("read", "{broken")]
        )
    )
    recording.receive(Record("run", 1, 0.0, Replied(Reply(calls=calls))))
    recording.close()
    for name in "xy":
        (tmp_path / f"{name}.toml").write_text(RULE.format(name))
    files = (str(tmp_path / "x.toml"), str(tmp_path / "y.toml"))
    assert compare_rules(judging, *files, None, as_json=False) == 0
    out = capsys.readouterr().out
    assert "deny rule:r -> allow; bash x 1" in out
    assert "2 calls of 1 runs: 2 would be judged differently" in out
    assert compare_rules(judging, files[0], files[0], judging.runs, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []
    with pytest.raises(ConfigError, match="no recordings"):
        compare_rules(judging, *files, tmp_path / "none", as_json=False)


def test_policy_commands_use_the_rules_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(tmp_path, "policy", "check") == 0
    assert "the shipped rules: " in capsys.readouterr().out
    assert main(tmp_path, "policy", "explain", "cat", "/etc/shadow") == 0
    assert "deny rule:keys-and-passwords" in capsys.readouterr().out
    assert main(tmp_path, "policy", "diff", "shipped", "shipped") == 2
    assert "no recordings" in capsys.readouterr().err


def test_explain_judges_a_network_stop_as_a_run_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    StopFile(tmp_path / STOPS_FILE_NAME).put(Stop(StopKind.NETWORK))
    assert main(tmp_path, "policy", "explain", "ls") == 0
    # The sandbox of a command has no network, so a run would let it pass.
    assert "Stops          allow" in capsys.readouterr().out
