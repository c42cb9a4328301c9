"""`evoclaw policy`: checking rules, explaining a verdict, comparing two files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from evoclaw.cli.main import parser
from evoclaw.cli.policy import policy
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record, Replied
from evoclaw.core.messages import Reply, ToolCall
from evoclaw.core.ports import Policy
from evoclaw.core.tools import Effect, Tool
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.rules.examples import load_rules
from evoclaw.store.sessions.recordings import Recording

TOOLS = (
    Tool("bash", "", {}, aliases=("shell",)),
    Tool("read", "", {}, effect=Effect.READ),
)
RULE = '[[rules]]\nname = "r"\nthen = "deny"\nprograms = ["{0}"]\ndenies = ["{0}"]\n'


@dataclass
class Here:
    folder: Path
    rules: Path | None = None
    tools: Sequence[Tool] = TOOLS

    @property
    def workspace(self) -> Path:
        return self.folder

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def policies(self) -> Sequence[Policy]:
        rules = load_rules(self.rules, workspace=str(self.folder), home=str(self.home))
        return (Autonomy(Level.FULL), rules)


def run(here: Here, *typed: str) -> int:
    return policy(parser().parse_args(("policy", *typed)), here)


def test_check_counts_rules_and_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULE.format("x"))
    assert run(Here(tmp_path), "check", str(file)) == 0
    assert "1 rules, 1 examples" in capsys.readouterr().out
    assert run(Here(tmp_path), "check", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == "the shipped rules" and told["rules"] >= 10
    file.write_text(RULE.format("x").replace('["x"]\n', '["y"]\n', 1))
    with pytest.raises(ConfigError, match="does not hold"):
        run(Here(tmp_path), "check", str(file))


def test_explain_names_policies_effects_and_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(Here(tmp_path), "explain", "bash", "cat /etc/shadow > out") == 0
    out = capsys.readouterr().out
    assert "Autonomy       allow" in out
    assert "Rules          deny rule:keys-and-passwords" in out
    assert "reads: /etc/shadow" in out and f"writes: {tmp_path}/out" in out
    assert run(Here(tmp_path), "explain", "--json", "read", "path=src/x") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in told["policies"]] == ["allow", "allow"]
    assert told["effects"]["reads"] == [f"{tmp_path}/src/x"]


def test_a_call_can_be_typed_in_three_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = '{"tool": "read", "arguments": {"path": "/etc/shadow"}}'
    for typed in ([call], ["read", "path=/etc/shadow"], ["cat", "/etc/shadow"]):
        run(Here(tmp_path), "explain", *typed)
        assert "deny rule:keys-and-passwords" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        run(Here(tmp_path), "explain", "read", "x")
    with pytest.raises(ConfigError, match="no call"):
        run(Here(tmp_path), "explain", "{x")


def test_diff_replays_recorded_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = Here(tmp_path)
    recording = Recording(here.runs / "one.jsonl")
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
    assert run(here, "diff", *files) == 0
    out = capsys.readouterr().out
    assert "deny rule:r -> allow; bash x 1" in out
    assert "2 calls of 1 runs: 2 would be judged differently" in out
    assert run(here, "diff", "--json", files[0], files[0], "--runs", str(here.runs)) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []
    with pytest.raises(ConfigError, match="no recordings"):
        run(here, "diff", *files, "--runs", str(tmp_path / "none"))
