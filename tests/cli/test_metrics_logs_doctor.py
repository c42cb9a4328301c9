"""Figures, logs and the doctor: what people read of the service, and in which words."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from aiohttp import web

from evoclaw.cli.prometheus import parse_metrics, quantile, tool_metrics
from evoclaw.core.messages import JSON
from evoclaw.observe.counters import Counters, Gauges
from evoclaw.observe.exposition import renderer
from tests.support.command_line import shell
from tests.support.stub_service import serve_stub, shell_for

FIGURES = """\
# TYPE evoclaw_tool_calls_total counter
evoclaw_tool_calls_total{tool="read",agent="a",outcome="success"} 8.0
evoclaw_tool_calls_total{tool="read",agent="b",outcome="timeout"} 2.0
evoclaw_tool_calls_total{tool="od\\"d\\nly",agent="a",outcome="success"} 1.0
evoclaw_tool_call_seconds_bucket{tool="read",agent="a",le="0.1"} 5.0
evoclaw_tool_call_seconds_bucket{tool="read",agent="a",le="1.0"} 9.0
evoclaw_tool_call_seconds_bucket{tool="read",agent="a",le="+Inf"} 10.0
evoclaw_tool_call_seconds_sum{tool="read",agent="a"} 20.0
evoclaw_tool_result_bytes_total{tool="read",agent="a"} 4096
evoclaw_runs_total{agent="a",stop="completed"} 3
evoclaw_runs_total{agent="b",stop="completed"} 4
evoclaw_tokens_total{agent="a",way="in"} 1.2e3
nonsense{ here
"""


def test_tool_metrics_are_summed_over_all_agents() -> None:
    read, odd = tool_metrics(list(parse_metrics(FIGURES)))
    assert (read.tool, read.calls, read.failed, read.errors) == ("read", 10, 2, {"timeout": 2})
    assert (read.p50_s, read.mean_s, read.bytes) == (0.1, 2.0, 4096)
    assert read.p95_s == 1.0, "beyond the last bound nothing is known"
    assert (odd.tool, odd.p50_s) == ('od"d\nly', None)


@pytest.mark.parametrize(("share", "below"), [(0.25, 0.05), (0.5, 0.1), (0.7, 0.55), (0.9, 1.0)])
def test_a_quantile_lies_within_its_bucket(share: float, below: float) -> None:
    assert quantile({0.1: 5, 1.0: 9, float("inf"): 10}, share) == pytest.approx(below)


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantile({}, 0.5) is None
    assert tool_metrics([]) == []


def test_the_prometheus_text_of_the_service_is_parsed() -> None:

    text = renderer(Counters(), Gauges(live_runs=lambda: 2))().decode()
    found = {sample.name: sample.value for sample in parse_metrics(text)}
    assert found["evoclaw_runs_live"] == 2


async def test_metrics_are_printed_as_text_json_and_prometheus(tmp_path: Path) -> None:
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=FIGURES)

    async with serve_stub(more=[web.get("/metrics", metrics)]) as fake:
        here = shell_for(fake, tmp_path)
        told = await here.type("metrics")
        facts = json.loads((await here.type("metrics", "--json")).out)
        table = await here.type("status", "--tools")
        raw = await here.type("metrics", "--raw")
    assert facts["runs"] == {"completed": 7.0}
    assert "7 completed" in told.out
    head, first, *_ = table.out.splitlines()
    assert head.split()[:3] == ["tool", "calls", "failed"]
    assert first.split()[:3] == ["read", "10", "2"]
    assert raw.out == FIGURES


async def test_logs_follow_prints_each_record_of_all_runs_once(tmp_path: Path) -> None:
    rows: list[dict[str, JSON]] = [
        {"seq": n, "timestamp": f"t{n}", "kind": "call", "tool": tool, "agent_id": "a\x1b[2J"}
        for n, tool in enumerate(("read", "", "bash"), 1)
    ]
    looks = asyncio.Event()

    async def audit(request: web.Request) -> web.Response:
        seen = rows[: 2 if not looks.is_set() else 3]
        looks.set()
        return web.json_response({"items": seen})

    async with serve_stub(more=[web.get("/v1/audit", audit)]) as fake:
        here = shell_for(fake, tmp_path)
        process = await here.start("logs", "--follow", "--filter=tool")
        assert process.stdout is not None
        async with asyncio.timeout(30):
            lines = [(await process.stdout.readline()).decode().split() for _ in range(2)]
        process.terminate()
        await process.communicate()
    assert [line[:3] for line in lines] == [["t1", "a", "read"], ["t3", "a", "bash"]]


async def test_logs_counts_the_lines_that_the_filter_lets_through(tmp_path: Path) -> None:
    rows: list[dict[str, JSON]] = [
        {"seq": n, "at": float(n), "timestamp": f"t{n}", "tool": "read" if n % 400 == 0 else ""}
        for n in range(1, 3_001)
    ]

    async def audit(request: web.Request) -> web.Response:
        until, limit = float(request.query["until"]), int(request.query["limit"])
        found = [row for row in rows if not until or row["at"] < until]
        return web.json_response({"items": found[-limit:]})

    async with serve_stub(more=[web.get("/v1/audit", audit)]) as fake:
        here = shell_for(fake, tmp_path)
        filtered = await here.type("logs", "--filter", "tool", "-n", "4", "--json")
        every = await here.type("logs", "--filter", "tool", "-n", "50", "--json")
        plain = await here.type("logs", "-n", "2", "--json")
    assert [json.loads(line)["seq"] for line in filtered.out.splitlines()] == [
        1_600, 2_000, 2_400, 2_800,
    ]  # fmt: skip
    assert len(every.out.splitlines()) == 7
    assert [json.loads(line)["seq"] for line in plain.out.splitlines()] == [2_999, 3_000]


async def test_doctor_gives_advice_for_each_problem(tmp_path: Path) -> None:
    async with serve_stub() as fake, shell(tmp_path) as here:
        data = here.home / ".evoclaw"
        data.mkdir(mode=0o755)
        here.env["EVOCLAW_HOME"] = str(data)
        (data / "evoclaw.toml").write_text("[orchestrator]\nmax_tool_iterations = 0\n")
        (data / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 4096)
        (data / "orchestrator.json").write_text('{"url": "mqtt://127.0.0.1:9"}')
        here.env["EVOCLAW_URL"] = fake.url.replace("127.0.0.1", "127.0.0.2")
        facts = json.loads((await here.type("doctor", "--json")).out)
    found = {one["name"]: (one["ok"], one["says"]) for one in facts}
    for name, said in (
        ("settings", "evoclaw init --force"),
        ("data folder", "chmod go="),
        ("store", "broken.db"),
        ("service", "evoclaw up"),
        ("broker", "restart `evoclaw up`"),
    ):
        ok, says = found[name]
        assert not ok and said in says, f"{name}: {says}"


async def test_doctor_reports_a_healthy_installation_as_ok(tmp_path: Path) -> None:
    async def ready(request: web.Request) -> web.Response:
        return web.json_response({"ready": True, "parts": {"store": "ok"}})

    async with serve_stub(more=[web.get("/health/ready", ready)]) as fake:
        here = shell_for(fake, tmp_path)
        sqlite3.connect(here.home / ".evoclaw" / "sound.db").execute("CREATE TABLE a (b)").close()
        facts = json.loads((await here.type("doctor", "--json")).out)
    found = {one["name"]: one["ok"] for one in facts}
    assert all(found[name] for name in ("settings", "data folder", "disk", "store", "service"))


async def test_doctor_checks_the_notifiers(tmp_path: Path) -> None:
    async with shell(tmp_path) as here:
        data = here.home / ".evoclaw"
        data.mkdir(mode=0o700)
        here.env["EVOCLAW_HOME"] = str(data)
        (data / "evoclaw.toml").write_text(
            '[[notify]]\nname = "phone"\nkind = "telegram"\n'
            '[notify.telegram]\nchat_id = "1"\ntoken_env = "BOT_TOKEN"\n'
        )

        async def found() -> tuple[bool, str]:
            facts = json.loads((await here.type("doctor", "--json")).out)
            return next((one["ok"], one["says"]) for one in facts if one["name"] == "notifiers")

        ok, says = await found()
        assert not ok
        assert "the environment variable BOT_TOKEN is empty" in says
        here.env["BOT_TOKEN"] = "1:abc"
        ok, says = await found()
        assert ok
        assert "evoclaw notify test phone" in says
