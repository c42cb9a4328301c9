"""The examples for Prometheus and Grafana: every name and label in them is one that we tell."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as families

from evoclaw.core.events import CallFinished, CallStarted, Record, RunFinished, StopReason
from evoclaw.core.messages import JSON, ErrorKind, TextBlock, ToolResult
from evoclaw.observe.counters import EdgeGauges, Gauges
from evoclaw.observe.metrics import Metrics
from tests.support.service import running_service

PLACE = Path(__file__).parents[2] / "examples" / "monitoring"
ADDED = {"instance", "job"}
"""Labels that Prometheus itself puts on everything."""
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTED = re.compile(r"\b(evoclaw_\w+|up)\b(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_WORDS = frozenset(
    ("and", "or", "unless", "time", "rate", "increase", "sum", "min", "max", "topk", "bottomk")
    + ("deriv", "histogram_quantile")
)


def lived() -> Metrics:
    """Figures of a process in which everything happened once."""
    number = float
    metrics = Metrics(
        Gauges(
            live_runs=number, queued_runs=number, edges_online=number,
            edges=lambda: [EdgeGauges("lamp", True)],
            approvals_waiting=number, approval_wait=number,
            link_reconnects=number, store_busy=number, store_commits=number, disk_free=number,
            ready=lambda: {"store": True},
            counts={"reception": lambda: {"disconnected": 1}},
        )
    )  # fmt: skip
    listener = metrics.sink("cook")
    failed = ToolResult("c", "bash", (TextBlock("no"),), ErrorKind.TIMEOUT)
    for seq, event in enumerate(
        (
            CallStarted("c", "bash", {}, "r.1"),
            CallFinished(failed),
            RunFinished(StopReason.ERROR, ""),
        ),
        start=1,
    ):
        listener.receive(Record("r", seq, float(seq), event))
    metrics.http("GET", "/v1/runs", 200, 0.1)
    return metrics


def labels_in(text: str) -> dict[str, set[str]]:
    """The samples that are told, and the labels that each may have."""
    found: dict[str, set[str]] = defaultdict(set)
    for family in families(text):
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys() | ADDED
    return found


async def told(folder: Path) -> Mapping[str, set[str]]:
    async with running_service(folder) as up:
        ann = await up.client_with("metrics:read")
        answer = await ann.get("/metrics")
    return labels_in(lived().render().decode() + answer.body.decode()) | {"up": ADDED}


def problems_of(expression: str, shown: str, known: Mapping[str, set[str]]) -> Iterator[str]:
    """What is wrong with an expression, as far as names, labels and parentheses go."""
    plain = _TEXT.sub('""', expression.replace("$__rate_interval", "5m"))
    for opening, closing in ("()", "{}", "[]"):
        if plain.count(opening) != plain.count(closing):
            yield f"{opening}{closing} do not match"
    selected = _SELECTED.findall(plain)
    if not selected:
        yield "it asks for nothing"
    every: set[str] = set()
    for name, matchers in selected:
        if name not in known:
            yield f"nothing is called {name}"
        labels = known.get(name, set())
        every |= labels
        yield from (
            f"{name} has no label {one}" for one in _NAME.findall(matchers) if one not in labels
        )
    groups = [one for group in _GROUPED.findall(plain) for one in _NAME.findall(group)]
    yield from (f"nothing has the label {one}" for one in groups if one not in every)
    kept: set[str] = {*groups, *ADDED} if groups else every
    if re.search(r"\b(sum|min|max)\s*\(", plain) and not groups:
        kept = set[str]()
    yield from (f"{one} is shown but not there" for one in _SHOWN.findall(shown) if one not in kept)
    rest = _GROUPED.sub("", re.sub(r"\[[^\]]*\]", "", _SELECTED.sub("", plain)))
    yield from (f"what is {one!r}?" for one in _NAME.findall(rest) if one not in _WORDS)


def rules() -> list[dict[str, JSON]]:
    (group,) = yaml.safe_load((PLACE / "alerts.yml").read_text())["groups"]
    return group["rules"]


def panels() -> list[dict[str, JSON]]:
    board = msgspec.json.decode((PLACE / "grafana-dashboard.json").read_bytes())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


async def test_every_alert_uses_exported_metrics_and_labels(tmp_path: Path) -> None:
    known = await told(tmp_path)
    wrong = [
        f"{rule['alert']}: {problem}"
        for rule in rules()
        for problem in problems_of(rule["expr"], rule["annotations"]["summary"], known)
    ]
    assert not wrong, "\n".join(wrong)


async def test_every_grafana_panel_uses_exported_metrics_and_labels(tmp_path: Path) -> None:
    known = await told(tmp_path)
    wrong = [
        f"{panel['title']}: {problem}"
        for panel in panels()
        for target in panel["targets"]
        for problem in problems_of(target["expr"], target["legendFormat"], known)
    ]
    assert not wrong, "\n".join(wrong)


def test_alerts_have_unique_names_a_severity_and_an_action() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["action"], rule["alert"]


def test_grafana_panels_have_unique_ids_and_do_not_overlap() -> None:
    board = msgspec.json.decode((PLACE / "grafana-dashboard.json").read_bytes())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        places = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not places & taken, panel["title"]
        taken |= places


def test_the_prometheus_example_has_target_path_and_token() -> None:
    settings = yaml.safe_load((PLACE / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    assert settings["rule_files"] == ["alerts.yml"]
    assert job["metrics_path"] == "/metrics"
    assert job["authorization"] == {"type": "Bearer", "credentials_file": "evoclaw.token"}
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8433"]


@pytest.mark.parametrize(
    ("expression", "shown", "problem"),
    [
        ("sum(evoclaw_runs_lively)", "", "nothing is called evoclaw_runs_lively"),
        ('rate(evoclaw_runs_total{stopp="x"}[5m])', "", "evoclaw_runs_total has no label stopp"),
        ("sum by (tol) (evoclaw_runs_total)", "", "nothing has the label tol"),
        ("sum(evoclaw_runs_total)", "{{stop}}", "stop is shown but not there"),
        ("summ(evoclaw_runs_total)", "", "what is 'summ'?"),
        ("sum(evoclaw_runs_total", "", "() do not match"),
        ("1 > 0", "", "it asks for nothing"),
    ],
)
def test_the_promql_check_finds_mistakes(expression: str, shown: str, problem: str) -> None:
    known = {"evoclaw_runs_total": {"stop", "agent"}}
    assert problem in list(problems_of(expression, shown, known))
