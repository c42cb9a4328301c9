// @ts-check
// Metrics of tools and requests, computed from the stored records.

import { get } from "../../api.js";
import { h, onAbort, replace } from "../../dom.js";
import { count, duration, millis, money, percent } from "../../format.js";
import { on } from "../../live.js";
import { field, figure, load, select, table } from "../../components.js";
import { bars, linePlot } from "../../plot.js";

export const title = "Metrics";

const SPANS = [["3600", "last hour"], ["86400", "last 24 hours"], ["604800", "last 7 days"],
  ["2592000", "last 30 days"]];
const SETTLE = 2000; // milliseconds after the end of a run before reloading

/**
 * Show the metrics of a period, reloaded when runs end.
 * @param {HTMLElement} root @param {string[]} _args @param {AbortSignal} signal
 */
export async function mount(root, _args, signal) {
  const place = h("div", { class: "metrics" });
  const look = () => load(place, () => figures(span.value, agent.value, signal), page, signal);
  const span = select(SPANS, "86400", look);
  const agent = select([["", "all agents"]], "", look);
  fillAgents(agent, signal);
  const filters = h("div", { class: "row filters" }, field("Period", span), field("Agent", agent));
  replace(root, filters, place);
  let timer = 0;
  on("runs", (changed) => {
    if (!changed.some((run) => run.state === "ended")) return;
    clearTimeout(timer);
    timer = setTimeout(look, SETTLE);
  }, signal);
  onAbort(signal, () => clearTimeout(timer));
  await look();
}

/** @param {string} span @param {string} agent @param {AbortSignal} signal */
function figures(span, agent, signal) {
  const since = Math.floor(Date.now() / 1000 - Number(span));
  return get("/v1/figures", { since, agent }, { signal });
}

/** @param {HTMLSelectElement} agent @param {AbortSignal} signal */
async function fillAgents(agent, signal) {
  const found = await get("/v1/agents", null, { signal }).catch(() => ({ agents: [] }));
  for (const { name } of found.agents) agent.append(h("option", { value: name }, name));
}

/** @param {Api.MetricsView} found */
function page(found) {
  return [summary(found.requests), plots(found), toolTable(found.tools)];
}

/** @param {Api.RequestSummary} all */
function summary(all) {
  return h("section", { class: "card row figures", "aria-label": "All requests" },
    figure("requests", count(all.count)),
    figure("turns per request", count(all.iterations.avg), "on average"),
    figure("time to answer, p50", duration(all.seconds.p50)),
    figure("time to answer, p95", duration(all.seconds.p95)),
    figure("recovery rate", all.recovery_rate === null ? "nothing failed"
      : percent(all.recovery_rate), "failed calls that a later call made up for"),
    figure("wall time saved", duration(all.saved_seconds), "by calls that ran in parallel"),
    figure("tokens", count(all.tokens_in + all.tokens_out)),
    figure("cost", money(all.unpriced && !all.cost ? null : all.cost),
      all.unpriced ? `${all.unpriced} replies have no known price` : ""));
}

/** @param {Api.MetricsView} options */
function plots({ series, tool_series: byTool, tools, requests }) {
  /** @param {keyof Api.MetricsPoint} key */
  const over = (key) => series.map((one) => ({ at: one.at, value: one[key] }));
  const busiest = Object.entries(byTool || {}).slice(0, 6);
  /** @param {keyof Api.ToolPoint} key */
  const latency = (key) => busiest.map(([name, points]) => (
    { name, points: points.map((one) => ({ at: one.at, value: one.calls ? one[key] : null })) }));
  const kinds = Object.entries(requests.error_types).sort((a, b) => b[1] - a[1]);
  const drawn = [
    linePlot({ title: "Latency p50 per tool", series: latency("p50_ms"), format: millis }),
    linePlot({ title: "Latency p95 per tool", series: latency("p95_ms"), format: millis }),
    bars({ title: "Errors by type",
      items: kinds.map(([name, value]) => ({ name, value, tone: "bad" })) }),
    bars({ title: "Calls per tool", format: count,
      items: tools.slice(0, 12).map((one) => ({ name: one.tool, value: one.calls })) }),
    linePlot({ title: "Cost", series: [{ name: "cost", points: over("cost") }], format: money }),
    linePlot({ title: "Turns per request",
      series: [{ name: "turns", points: over("iterations") }], format: count }),
    linePlot({ title: "Requests and calls", format: count, series: [
      { name: "requests", points: over("runs") }, { name: "calls", points: over("calls") },
      { name: "failed calls", points: over("errors") }] }),
    linePlot({ title: "Wall time saved", series: [{ name: "saved", points: over("saved_seconds") }],
      format: duration }),
  ];
  return h("div", { class: "plots" }, drawn.map((one) => h("div", { class: "card" }, one)));
}

/** @param {Api.ToolSummary[]} tools */
function toolTable(tools) {
  /** @param {Api.ToolSummary} one */
  const errors = (one) => Object.entries(one.errors).map(([kind, n]) => `${kind} ${n}`).join(", ");
  return h("section", { class: "card", "aria-label": "Per tool" }, h("h2", null, "Per tool"),
    table("metrics per tool", [
      { title: "Tool", main: true, cell: (one) =>
        h("a", { href: `#/tools/${encodeURIComponent(one.tool)}`, class: "mono" }, one.tool) },
      { title: "Calls", number: true, cell: (one) => count(one.calls) },
      { title: "Success", number: true, cell: (one) => percent(one.success_rate) },
      { title: "Denied", number: true, cell: (one) => count(one.denied) },
      { title: "Average", number: true, cell: (one) => millis(one.avg_ms) },
      { title: "p50", number: true, cell: (one) => millis(one.p50_ms) },
      { title: "p95", number: true, cell: (one) => millis(one.p95_ms) },
      { title: "Errors", cell: (one) => errors(one) || "none" },
    ], tools));
}
