"""`evoclaw metrics --tools`: the same figures from the service, and from the store without it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from evoclaw.cli.client import ServiceNotRunning
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    Event,
    Record,
    Replied,
    RunFinished,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import ErrorBlock, ErrorKind, Reply, TextBlock, ToolResult, Usage
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore
from evoclaw.wiring.store import open_stores
from tests.support.programs.governed_commands import typed
from tests.support.service import running_service

FAILED = ErrorBlock(ErrorKind.TIMEOUT, "Error: too slow.")


def metrics(*words: str) -> int:
    return typed("metrics", *words)


async def fill(home: Path, *, ago: float = 60.0) -> None:
    """One run in the store of a machine: a call that timed out, and one that did not."""
    began = time.time() - ago
    events: tuple[tuple[float, Event], ...] = (
        (0, TurnStarted(1)),
        (1, Replied(Reply("", usage=Usage(100, 20), cost=0.0125))),
        (2, CallStarted("a", "read\x1b[2J", {}, "x")),
        (4, CallFinished(ToolResult("a", "read\x1b[2J", (FAILED,), ErrorKind.TIMEOUT))),
        (5, TurnStarted(2)),
        (6, CallStarted("b", "bash", {}, "x")),
        (6.5, CallFinished(ToolResult("b", "bash", (TextBlock("fine"),)))),
        (8, RunFinished(StopReason.COMPLETED, "done")),
    )
    async with open_stores({"EVOCLAW_HOME": str(home)}) as stored:
        clock = [began]
        store = SessionStore(stored.database, lambda: clock[0])
        await store.create(Session("s1", "helper"))
        run = await store.create_run("r1", "s1", "hi")
        records = [Record("r1", seq, began + at, one) for seq, (at, one) in enumerate(events, 1)]
        clock[0] = began + 8
        await store.append(run, records, [], RunUsage(turns=2), StopReason.COMPLETED)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a service."""
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    monkeypatch.delenv("EVOCLAW_URL", raising=False)
    return tmp_path


def test_without_the_service_tool_metrics_come_from_the_store(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill(home))
    assert metrics("--tools") == 0
    shown = capsys.readouterr().out
    head, bash, read, _, *rest = shown.splitlines()
    assert head.split() == [
        "tool", "calls", "ok", "failed", "denied", "avg", "p50", "p95", "max", "errors",
    ]  # fmt: skip
    assert bash.split() == ["bash", "1", "100", "%", "0", "0", *["500", "ms"] * 4]
    assert read.split()[-2:] == ["1", "timeout"] and "2 s" in read and "0 %" in read
    assert "\x1b" not in shown
    told = dict(line.split("  ", 1) for line in rest)
    said = {name: value.strip() for name, value in told.items()}
    assert said == {
        "requests": "1: 1 completed",
        "iterations per request": "average 2, p50 2, p95 2, max 2",
        "time to final response": "average 8 s, p50 8 s, p95 8 s, max 8 s",
        "error types": "1 timeout",
        "recovered": "1 of 1 failed calls (100 %)",
        "saved by parallel calls": "0 ms",
        "tokens": "100 in, 20 out",
        "cost": "$0.0125",
    }


def test_tool_metrics_are_filtered_by_time_and_agent(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill(home, ago=7_200))
    for words, calls_ in (
        ((), 2),
        (("--since", "1h"), 0),
        (("--since", "3h", "--agent", "helper"), 2),
        (("--agent", "coder"), 0),
    ):
        assert metrics("--tools", "--json", *words) == 0
        found = json.loads(capsys.readouterr().out)
        assert sum(tool["calls"] for tool in found["tools"]) == calls_, words
    assert metrics("--tools", "--since", "1h") == 0
    assert "no tool was called in the last 1h" in capsys.readouterr().out


def test_invalid_metrics_options_are_errors(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--since: 'soon' is not a duration"):
        metrics("--tools", "--since", "soon")
    with pytest.raises(ConfigError, match="--agent needs --tools"):
        metrics("--agent", "helper")
    monkeypatch.setenv("EVOCLAW_URL", "http://127.0.0.1:9")
    with pytest.raises(ServiceNotRunning):
        metrics("--tools")


async def test_while_the_service_is_up_tool_metrics_come_from_the_service(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "data").mkdir()
    async with running_service(
        home / "data", Scripted(calls(("work", {})), says("Worked."))
    ) as service:
        ann = await service.client_with("*")
        left = home / "api.json"
        left.write_text(json.dumps({"url": service.url, "token": ann.token}))
        left.chmod(0o600)
        run = (await ann.post("/v1/runs", {"message": "work"})).json
        await ann.until(f"/v1/runs/{run['run_id']}", "state", "ended")
        assert await asyncio.to_thread(metrics, "--tools") == 0
    told = capsys.readouterr().out
    assert told.splitlines()[1].split()[:4] == ["work", "1", "100", "%"]
    assert "1: 1 completed" in told and "average 2, p50 2" in told
    assert not (home / "evoclaw.db").exists(), "the store was left alone"
