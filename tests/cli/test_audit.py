"""`evoclaw audit` finds, proves, exports and delivers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evoclaw.cli import exits
from evoclaw.cli.audit import parse_time
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.observe.audit.warm import CHECKPOINTS_FILE, day_files
from tests.support.audit import ANN, Clock, audit_in, draft
from tests.support.programs.governed_commands import typed

TOKEN = "ghp_" + "C4n4ryC4n4ryC4n4ryC4n4ryC4n4ryC4n4ry"


Typing = Callable[..., tuple[int, str]]


@pytest.fixture(name="data")
def _data(tmp_path: Path) -> Path:
    data = tmp_path / "home"
    clock = Clock()
    with audit_in(data, clock) as opened:
        for number in range(5):
            opened.note(draft(clock, number, text=f"say \x1b[2J {TOKEN}"))
            clock.advance(60)
        opened.record("emergency_stop", ANN, reason="all of it")
    return data


@pytest.fixture(name="typed")
def _typed(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Typing:
    def type_(*words: str, place: Path | None = None, **settings: Any) -> tuple[int, str]:
        with monkeypatch.context() as patched:
            patched.setenv("EVOCLAW_HOME", str(place or data))
            for name, value in settings.items():
                patched.setenv(f"EVOCLAW_AUDIT_{name.upper()}", str(value))
            code = typed("audit", *words)
        return code, capsys.readouterr().out

    return type_


def test_search_prints_one_sanitized_line_per_record_without_secrets(typed: Typing) -> None:
    code, out = typed("search")

    assert code == exits.OK
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("2026-10-26T12:00:00.000Z desktop-agent bash success")
    assert "echo 0" in lines[0] and "[redacted:github-token#" in lines[0]
    assert "emergency_stop" in lines[5] and "all of it" in lines[5]
    assert "\x1b" not in out and TOKEN not in out


def test_search_says_which_step_of_evolution_a_record_is(typed: Typing, data: Path) -> None:
    steps: list[tuple[str, dict[str, Any]]] = [
        ("evolution", {"what": "proposal", "reason": "answers were long"}),
        ("evolution", {"what": "verdict", "candidate": 5, "stage": "safety", "passed": False}),
        ("evolution", {"what": "verdict", "candidate": 6, "stage": "canary", "passed": None}),
        ("evolution", {"what": "change", "candidate": 7, "version": 2, "reason": "short"}),
        ("genome", {"version": 3, "reason": "by hand"}),
        ("genome_rollout", {"rollout": "r1", "what": "halted", "reason": "calls fail"}),
    ]
    with audit_in(data, Clock()) as opened:
        for kind, fields in steps:
            opened.record(kind, ANN, **fields)

    _, out = typed("search")
    ends = [" ".join(line.split()[2:]) for line in out.splitlines()[-len(steps) :]]
    assert ends == [
        "evolution proposal: answers were long",
        "evolution verdict of candidate 5 safety failed",
        "evolution verdict of candidate 6 canary started",
        "evolution change of candidate 7 version 2: short",
        "genome version 3: by hand",
        "genome_rollout halted: calls fail",
    ]


def test_search_json_prints_complete_records(typed: Typing) -> None:
    _, out = typed("search", "--tool", "bash", "--text", "echo 3", "--json")

    (record,) = [json.loads(line) for line in out.splitlines()]
    assert (record["seq"], record["user"], record["tenant"]) == (4, "ann", "acme")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("--user", "ann"), 6),
        (("--user", "bob"), 0),
        (("--kind", "call", "--limit", "2"), 2),
        (("--agent", "desktop-agent", "--run", "run"), 5),
        (("--since", "2026-10-26T12:02"), 4),
        (("--until", "2026-10-26T12:02:00+00:00"), 2),
        (("--since", "2026-10-27"), 0),
        (("--verdict", "deny"), 0),
        (("--tenant", "acme"), 6),
    ],
)
def test_search_filters_records(typed: Typing, words: tuple[str, ...], count: int) -> None:
    assert len(typed("search", *words)[1].splitlines()) == count


def test_tail_prints_the_newest_records_last(typed: Typing) -> None:
    out = typed("tail", "-n", "2", "--json")[1]
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [5, 6]


def test_verify_accepts_an_unmodified_audit(typed: Typing) -> None:
    code, out = typed("verify")
    assert code == exits.OK
    assert out == "as written: 6 records, 1 to 6; 1 checkpoints, signed up to 6\n"
    assert json.loads(typed("verify", "--json")[1])["ok"] is True


def test_verify_reports_a_modified_record_and_fails(typed: Typing, data: Path) -> None:
    path = day_files(data / "audit")[0].path
    path.write_bytes(path.read_bytes().replace(b"echo 2", b"echo 9"))

    code, out = typed("verify")

    assert code == exits.FAILED
    assert out.splitlines()[0].startswith(f"{path.name}:3: edited: record ")
    assert "NOT as written" in out
    report = json.loads(typed("verify", "--json")[1])
    assert (report["ok"], report["findings"][0]["line"]) == (False, 3)


def test_verify_compares_shipped_records_with_local_files(typed: Typing, data: Path) -> None:
    code, out = typed("ship")
    assert (code, out.split(": ")[1]) == (exits.OK, "6 records shipped, up to record 6\n")
    assert typed("verify")[0] == exits.OK
    for path in (data / "audit").glob("2*"):
        path.unlink()
    code, out = typed("verify")
    assert code == exits.FAILED and "6 records were written" not in out.splitlines()[-1]
    assert len(typed("search")[1].splitlines()) == 6, "the cold tier still has them"


def test_an_export_is_verified_on_another_machine_with_the_public_key(
    typed: Typing, data: Path, tmp_path: Path
) -> None:
    key = typed("key")[1].strip()
    assert key.startswith("ed25519:"), "never a dash, which would make it an option"
    out = typed("export", str(tmp_path / "out.jsonl"), "--since", "2026-10-26")[1]
    assert "records 1 to 6" in out
    pin = out.splitlines()[1].partition(": ")[2]
    elsewhere = tmp_path / "elsewhere"

    verify = ("verify", str(tmp_path / "out.jsonl"), "--key", key)
    assert typed(*verify, place=elsewhere)[0] == exits.OK
    assert typed(*verify, "--at-least", pin, place=elsewhere)[0] == exits.OK
    assert typed(*verify, "--at-least", str(data / "audit" / CHECKPOINTS_FILE))[0] == exits.OK
    with pytest.raises(ConfigError, match="--key"):
        typed("verify", str(tmp_path / "out.jsonl"), place=elsewhere)
    lines = (tmp_path / "out.jsonl").read_bytes().split(b"\n")
    (tmp_path / "out.jsonl").write_bytes(b"\n".join(lines[:-2]) + b"\n")
    assert typed(*verify, place=elsewhere)[0] == exits.FAILED
    assert not elsewhere.exists(), "checking makes nothing"


def test_verify_with_a_pinned_checkpoint_detects_a_rolled_back_audit(
    typed: Typing, data: Path
) -> None:
    import shutil

    shutil.copytree(data / "audit", data / "old")
    clock = Clock()
    with audit_in(data, clock) as opened:
        opened.note(draft(clock, 7))
    pin = (data / "audit" / CHECKPOINTS_FILE).read_text().splitlines()[-1]
    shutil.rmtree(data / "audit")
    (data / "old").rename(data / "audit")

    assert typed("verify")[0] == exits.OK
    code, out = typed("verify", "--at-least", pin)
    assert code == exits.FAILED
    assert "old: the given checkpoint covers record 7" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", "--since", "yesterday"), "is not a time"),
        (("verify", "--key", "abc"), "not a public key"),
        (("verify", "--at-least", "/no/such/file"), "cannot read"),
        (("verify", "--at-least", "{}"), "needs a checkpoint"),
        (("verify", "/no/such/file"), "cannot read"),
        (("export", "/no/such/folder/x"), "choose another file"),
        (("export", "x", "--until", "1999-01-01"), "no record"),
    ],
)
def test_invalid_arguments_are_errors(typed: Typing, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(EvoClawError, match=said):
        typed(*words)


def test_commands_report_a_missing_audit_or_cold_tier(typed: Typing, tmp_path: Path) -> None:
    for words in (("verify",), ("export", str(tmp_path / "x"))):
        with pytest.raises(ConfigError, match="there is no audit"):
            typed(*words, place=tmp_path / "none")
    assert typed("search", place=tmp_path / "none") == (exits.OK, "")
    with pytest.raises(ConfigError, match="no cold tier"):
        typed("ship", cold="none")


def test_relative_and_iso_times_are_parsed() -> None:
    now = time.time()
    assert parse_time("2h", now) == now - 7200
    assert parse_time("1970-01-02", now) == 86_400
    assert parse_time("1970-01-01T01:00+01:00", now) == 0
    assert parse_time(None, now) is None
