"""The metrics in the text format of Prometheus: the only file that uses its library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from evoclaw.core.version import VERSION
from evoclaw.observe.counters import BOUNDS_S, OTHER, BucketCounts, Counters, EdgeGauges, Gauges

MAX_EDGES = 200
"""Edges with series of their own; the rest is one, `other`."""
_EDGE_SUMS: tuple[tuple[str, str, Callable[[EdgeGauges], float]], ...] = (
    ("online", "Whether the edge is online; of `other`, how many are.", lambda edge: edge.online),
    ("in_flight", "Commands that the edge executes.", lambda edge: edge.in_flight),
    ("queued", "Commands that are queued at the edge.", lambda edge: edge.queued),
    ("cpu_percent", "Processor use of the edge.", lambda edge: edge.cpu_percent),
    ("memory_bytes", "Memory use of the edge.", lambda edge: edge.memory_bytes),
)
"""Gauges that can be summed over edges."""
_EDGE_ONLY: tuple[tuple[str, str, Callable[[EdgeGauges], float]], ...] = (
    ("uptime_seconds", "How long the edge's machine has been up.", lambda edge: edge.uptime_s),
    ("last_seen_timestamp_seconds", "When the edge last sent anything.", lambda e: e.last_seen),
)
"""Gauges that have no meaning for several edges together."""
_BUCKET_LABELS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")
_BY_TOOL, _BY_AGENT = ("tool", "agent"), ("agent",)


def renderer(counters: Counters, gauges: Gauges) -> Callable[[], bytes]:
    """A function that renders the current metrics, with a registry of its own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MetricsCollector(counters, gauges))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)


class _MetricsCollector(Collector):
    """Converts the counters and gauges into families when they are collected."""

    def __init__(self, counters: Counters, gauges: Gauges) -> None:
        self._counters, self._gauges = counters, gauges
        self._named: set[str] = set()
        """The edges with series of their own: the first ones seen, permanently."""

    def collect(self) -> Iterator[Metric]:
        """All families."""
        build = InfoMetricFamily("evoclaw_build", "The version of EvoClaw.")
        build.add_metric((), {"version": VERSION})
        yield build
        yield from self._tools()
        yield from self._agents()
        yield from self._requests()
        yield from _gauge_families(self._gauges)
        if self._gauges.edges is not None:
            yield from self._edges(self._gauges.edges())

    def _tools(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "evoclaw_tool_calls",
            "Calls by outcome: success, or the kind of error.",
            labels=(*_BY_TOOL, "outcome"),
        )
        size = CounterMetricFamily(
            "evoclaw_tool_result_bytes", "Bytes that calls returned.", labels=_BY_TOOL
        )
        times = HistogramMetricFamily(
            "evoclaw_tool_call_seconds", "How long calls that ran took.", labels=_BY_TOOL
        )
        for names, series in tuple(self._counters.tools.items()):
            if series.calls.succeeded:
                calls.add_metric((*names, "success"), series.calls.succeeded)
            for outcome, count in tuple(series.calls.errors.items()):
                calls.add_metric((*names, outcome), count)
            size.add_metric(names, series.bytes)
            _add_histogram(times, names, series.seconds)
        yield from (calls, size, times)

    def _agents(self) -> Iterator[Metric]:
        runs = CounterMetricFamily(
            "evoclaw_runs",
            "Runs by stop reason; one that waits for a person is counted again when it ends.",
            labels=("agent", "stop"),
        )
        times = HistogramMetricFamily(
            "evoclaw_run_seconds", "From the start of a run to its end.", labels=_BY_AGENT
        )
        tokens = CounterMetricFamily(
            "evoclaw_tokens", "Tokens of prompts (in) and replies (out).", labels=("agent", "way")
        )
        cost = CounterMetricFamily(
            "evoclaw_cost_dollars", "US dollars spent, as far as prices are known.",
            labels=_BY_AGENT,
        )  # fmt: skip
        counts = {
            name: CounterMetricFamily(f"evoclaw_{name}", what, labels=_BY_AGENT)
            for name, what in (
                ("turns", "Turns of runs."),
                ("unpriced_replies", "Replies without a known price."),
                (
                    "retried_replies",
                    "Replies that failed or were cut off, and were requested again.",
                ),
                ("failed_replies", "Replies that failed for good."),
            )
        }
        for agent, series in tuple(self._counters.agents.items()):
            for stop, count in tuple(series.stops.items()):
                runs.add_metric((agent, stop), count)
            _add_histogram(times, (agent,), series.seconds)
            replies, spending = series.replies, series.replies.spending
            tokens.add_metric((agent, "in"), spending.tokens_in)
            tokens.add_metric((agent, "out"), spending.tokens_out)
            cost.add_metric((agent,), spending.cost)
            counts["turns"].add_metric((agent,), replies.turns)
            counts["unpriced_replies"].add_metric((agent,), spending.unpriced)
            counts["retried_replies"].add_metric((agent,), replies.retried)
            counts["failed_replies"].add_metric((agent,), replies.failed)
        yield from (runs, times, tokens, cost, *counts.values())

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "evoclaw_http_requests", "HTTP requests.", labels=("method", "route", "status")
        )
        for (method, route, status), count in tuple(self._counters.requests.items()):
            requests.add_metric((method, route, str(status)), count)
        times = HistogramMetricFamily(
            "evoclaw_http_request_seconds",
            "Time until a response started.",
            labels=("method", "route"),
        )
        for names, seconds in tuple(self._counters.request_seconds.items()):
            _add_histogram(times, names, seconds)
        yield from (requests, times)

    def _edges(self, edges: Iterable[EdgeGauges]) -> Iterator[Metric]:
        known = sorted(edges, key=lambda edge: (not edge.online, edge.name))
        for edge in known:
            if len(self._named) < MAX_EDGES and edge.name != OTHER:
                self._named.add(edge.name)
        alone = [edge for edge in known if edge.name in self._named]
        rest = [edge for edge in known if edge.name not in self._named]
        yield GaugeMetricFamily("evoclaw_edges_known", "Edges ever seen.", value=len(known))
        for name, what, read in _EDGE_SUMS:
            family = GaugeMetricFamily(f"evoclaw_edge_{name}", what, labels=("edge",))
            for edge in alone:
                family.add_metric((edge.name,), read(edge))
            if rest:
                family.add_metric((OTHER,), sum(map(read, rest)))
            yield family
        for name, what, read in _EDGE_ONLY:
            family = GaugeMetricFamily(f"evoclaw_edge_{name}", what, labels=("edge",))
            for edge in alone:
                family.add_metric((edge.name,), read(edge))
            yield family


def _gauge_families(gauges: Gauges) -> Iterator[Metric]:
    for name, what, read in (
        ("runs_live", "Runs in progress.", gauges.live_runs),
        ("runs_queued", "Runs that have not started yet.", gauges.queued_runs),
        ("edges_online", "Edges that are online.", gauges.edges_online),
        ("approvals_waiting", "Calls that wait for a person.", gauges.approvals_waiting),
        (
            "approval_wait_seconds",
            "How long the oldest approval has been waiting.",
            gauges.approval_wait,
        ),
        ("disk_free_bytes", "Free space on the disk of the store.", gauges.disk_free),
    ):
        if read is not None:
            yield GaugeMetricFamily(f"evoclaw_{name}", what, value=read())
    for name, what, read in (
        ("link_reconnects", "Lost connections to the broker.", gauges.link_reconnects),
        ("store_busy_seconds", "Seconds in which the store worked; 1 per second is its limit.",
         gauges.store_busy),
        ("store_commits", "Transactions that were committed.", gauges.store_commits),
    ):  # fmt: skip
        if read is not None:
            yield CounterMetricFamily(f"evoclaw_{name}", what, value=read())
    if gauges.ready is not None:
        ready = GaugeMetricFamily(
            "evoclaw_part_ready",
            "Whether a component that the service depends on works.",
            labels=("part",),
        )
        for part, works in gauges.ready().items():
            ready.add_metric((part,), works)
        yield ready
    counted = CounterMetricFamily(
        "evoclaw_counted",
        "Counters of the components of the process, by reason.",
        labels=("part", "what"),
    )
    for part, counts in gauges.counts.items():
        for what, count in counts().items():
            counted.add_metric((part, what), count)
    yield counted


def _add_histogram(
    family: HistogramMetricFamily, names: tuple[str, ...], seconds: BucketCounts
) -> None:
    buckets = tuple(zip(_BUCKET_LABELS, accumulate(seconds.counts), strict=True))
    family.add_metric(names, buckets, seconds.total_s)
