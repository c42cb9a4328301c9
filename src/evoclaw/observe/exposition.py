"""The figures as Prometheus reads them: the one file that knows its library."""

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
from evoclaw.observe.durations import BOUNDS, Durations
from evoclaw.observe.tallies import EdgeFigures, Gauges, Tallies

MOST_EDGES = 200
"""Edges that are told apart; the rest is one, `other`."""
OTHER = "other"
_OF_EDGES: tuple[tuple[str, str, Callable[[EdgeFigures], float]], ...] = (
    ("online", "Whether the edge is there; of `other`, how many are.", lambda one: one.online),
    ("in_flight", "Commands that the edge works on.", lambda one: one.in_flight),
    ("queued", "Commands that wait at the edge.", lambda one: one.queued),
    ("cpu_percent", "What the edge uses of a processor.", lambda one: one.cpu_percent),
    ("memory_bytes", "What the edge uses of its memory.", lambda one: one.memory_bytes),
)
"""What of edges can be added up."""
_OF_ONE_EDGE: tuple[tuple[str, str, Callable[[EdgeFigures], float]], ...] = (
    ("uptime_seconds", "How long the machine of the edge has been up.", lambda one: one.uptime_s),
    ("last_seen_timestamp_seconds", "When it last gave a sign of life.", lambda one: one.last_seen),
)
"""What means something of each alone."""
_LIMITS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")
_BY_TOOL, _BY_AGENT = ("tool", "agent"), ("agent",)


def rendering(tallies: Tallies, gauges: Gauges) -> Callable[[], bytes]:
    """What writes the figures down, whenever they are asked for; nothing of it is global."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(tallies, gauges))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)


class _Figures(Collector):
    """Turns the numbers into families when they are collected."""

    def __init__(self, tallies: Tallies, gauges: Gauges) -> None:
        self._tallies, self._gauges = tallies, gauges
        self._named: set[str] = set()
        """The edges that are told apart: those that came first, for good."""

    def collect(self) -> Iterator[Metric]:
        """Everything, once."""
        build = InfoMetricFamily("evoclaw_build", "Which EvoClaw this is.")
        build.add_metric((), {"version": VERSION})
        yield build
        yield from self._of_tools()
        yield from self._of_agents()
        yield from self._of_requests()
        yield from _asked(self._gauges)
        if self._gauges.edges is not None:
            yield from self._of_edges(self._gauges.edges())

    def _of_tools(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "evoclaw_tool_calls",
            "Calls by how they ended: success, or the kind of error.",
            labels=(*_BY_TOOL, "outcome"),
        )
        size = CounterMetricFamily(
            "evoclaw_tool_result_bytes", "Bytes of what calls gave back.", labels=_BY_TOOL
        )
        times = HistogramMetricFamily(
            "evoclaw_tool_call_seconds", "How long calls that ran took.", labels=_BY_TOOL
        )
        for names, tally in tuple(self._tallies.tools.items()):
            for outcome, count in tuple(tally.outcomes.items()):
                calls.add_metric((*names, outcome), count)
            size.add_metric(names, tally.bytes)
            _put(times, names, tally.durations)
        yield from (calls, size, times)

    def _of_agents(self) -> Iterator[Metric]:
        runs = CounterMetricFamily(
            "evoclaw_runs",
            "Runs by how they ended; one that waits for a person is counted again when it ends.",
            labels=("agent", "stop"),
        )
        times = HistogramMetricFamily(
            "evoclaw_run_seconds", "From a run's beginning to its end.", labels=_BY_AGENT
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
                ("turns", "Replies that models were asked for."),
                ("unpriced_replies", "Replies without a known price."),
                ("retried_replies", "Replies that broke off or were refused, and asked for again."),
                ("failed_replies", "Replies that could not be had."),
            )
        }
        for agent, tally in tuple(self._tallies.agents.items()):
            for stop, count in tuple(tally.stops.items()):
                runs.add_metric((agent, stop), count)
            _put(times, (agent,), tally.durations)
            tokens.add_metric((agent, "in"), tally.tokens_in)
            tokens.add_metric((agent, "out"), tally.tokens_out)
            cost.add_metric((agent,), tally.cost)
            counts["turns"].add_metric((agent,), tally.turns)
            counts["unpriced_replies"].add_metric((agent,), tally.unpriced)
            counts["retried_replies"].add_metric((agent,), tally.retries)
            counts["failed_replies"].add_metric((agent,), tally.failed_replies)
        yield from (runs, times, tokens, cost, *counts.values())

    def _of_requests(self) -> Iterator[Metric]:
        asked = CounterMetricFamily(
            "evoclaw_http_requests", "HTTP requests.", labels=("method", "route", "status")
        )
        for (method, route, status), count in tuple(self._tallies.requests.items()):
            asked.add_metric((method, route, str(status)), count)
        times = HistogramMetricFamily(
            "evoclaw_http_request_seconds", "Until an answer began.", labels=("method", "route")
        )
        for names, durations in tuple(self._tallies.request_times.items()):
            _put(times, names, durations)
        yield from (asked, times)

    def _of_edges(self, edges: Iterable[EdgeFigures]) -> Iterator[Metric]:
        known = sorted(edges, key=lambda edge: (not edge.online, edge.name))
        for edge in known:
            if len(self._named) < MOST_EDGES and edge.name != OTHER:
                self._named.add(edge.name)
        alone = [edge for edge in known if edge.name in self._named]
        rest = [edge for edge in known if edge.name not in self._named]
        yield GaugeMetricFamily("evoclaw_edges_known", "Edges ever heard of.", value=len(known))
        for name, what, figure in _OF_EDGES:
            family = GaugeMetricFamily(f"evoclaw_edge_{name}", what, labels=("edge",))
            for edge in alone:
                family.add_metric((edge.name,), figure(edge))
            if rest:
                family.add_metric((OTHER,), sum(map(figure, rest)))
            yield family
        for name, what, figure in _OF_ONE_EDGE:
            family = GaugeMetricFamily(f"evoclaw_edge_{name}", what, labels=("edge",))
            for edge in alone:
                family.add_metric((edge.name,), figure(edge))
            yield family


def _asked(gauges: Gauges) -> Iterator[Metric]:
    for name, what, ask in (
        ("runs_live", "Runs that go on now.", gauges.live_runs),
        ("runs_queued", "Runs that have not begun yet.", gauges.queued_runs),
        ("sse_watchers", "Who watches runs over server-sent events.", gauges.watchers),
        ("edges_online", "Edges that are there.", gauges.edges_online),
        ("outbox_depth", "Commands that wait for an edge.", gauges.outbox_depth),
        ("approvals_waiting", "Calls that wait for a person.", gauges.approvals_waiting),
        ("approval_wait_seconds", "Since the oldest was asked for.", gauges.approval_wait),
        ("disk_free_bytes", "Left on the disk of the store.", gauges.disk_free),
        ("deliveries_waiting", "Answers not delivered yet.", gauges.deliveries_waiting),
    ):
        if ask is not None:
            yield GaugeMetricFamily(f"evoclaw_{name}", what, value=ask())
    for name, what, ask in (
        ("link_reconnects", "Times that the link to the broker was lost.", gauges.link_reconnects),
        ("store_busy_seconds", "In which the store was at work: 1 a second is all it can do.",
         gauges.store_busy),
        ("store_commits", "Transactions that were committed.", gauges.store_commits),
    ):  # fmt: skip
        if ask is not None:
            yield CounterMetricFamily(f"evoclaw_{name}", what, value=ask())
    if gauges.ready is not None:
        ready = GaugeMetricFamily(
            "evoclaw_part_ready",
            "Whether a part works that nothing goes without.",
            labels=("part",),
        )
        for part, works in gauges.ready().items():
            ready.add_metric((part,), works)
        yield ready
    counted = CounterMetricFamily(
        "evoclaw_counted", "What parts of the process count, by reason.", labels=("part", "what")
    )
    for part, numbers in gauges.counts.items():
        for what, count in numbers().items():
            counted.add_metric((part, what), count)
    yield counted


def _put(family: HistogramMetricFamily, names: tuple[str, ...], durations: Durations) -> None:
    buckets = tuple(zip(_LIMITS, accumulate(durations.below), strict=True))
    family.add_metric(names, buckets, durations.total)
