// @ts-check
// The emergency stop: in force until a person releases it.

import { get, post } from "../../api.js";
import { h, replace } from "../../dom.js";
import { fleet, known as live, may, on } from "../../live.js";
import { release, stopName } from "../../stops.js";
import { badge, button, confirmed, failed, field, load, missingScope, select, toast, when }
  from "../../components.js";

/** @type {{[kind: string]: [string, string]}} */
const KINDS = {
  all: ["everything", "All runs and calls, including current ones, here and on every edge."],
  network: ["the network", "Every call that can reach the network."],
  agent: ["an agent or edge", "One agent or edge, including its current runs and calls."],
  tool: ["a tool", "Every call of one tool."],
};

/**
 * A bar with the stops in force, and a button to stop everything.
 * @param {AbortSignal} signal
 */
export function stopBar(signal) {
  const state = h("span", { role: "status" });
  const bar = h("div", { class: "stop-bar row between", role: "region",
    "aria-label": "Emergency stop" });
  /** @param {Api.StopView[]} stops */
  const show = (stops) => {
    bar.classList.toggle("on", stops.length > 0);
    const names = stops.map(stopName).join(", ");
    replace(state, stops.length ? [badge("bad", "stopped"), " ", names, " "]
      : [badge("good", "nothing is stopped"), " "],
    h("a", { href: "#/settings/stops" }, stops.length ? "Release…" : "Stop one thing…"));
  };
  replace(bar, state, button("Stop everything…", async () => {
    const stops = await stop("all", "");
    if (stops) show(stops);
  }, { tone: "danger stop" }));
  on("stops", () => show(live.stops), signal);
  listed(signal).then(show, (cause) => {
    if (cause.name !== "AbortError") replace(state, cause.message);
  });
  return bar;
}

/** @param {AbortSignal} signal */
const listed = async (signal) => (await get("/v1/stops", null, { signal })).items;

/**
 * Add a stop after confirmation; returns the stops in force, or null if cancelled.
 * @param {string} kind @param {string} name
 */
async function stop(kind, name) {
  const [what, effect] = KINDS[kind];
  const reason = await confirmed(`Stop ${name ? `${kind} ${name}` : what}?`,
    `${effect} It stays stopped until a person releases it.`,
    { action: "Stop now", ask: "Reason, shown to models and people (optional)" });
  if (reason === null) return null;
  const body = name ? { kind, name, reason } : { kind, reason };
  const { items } = await post("/v1/stops", body);
  toast(`Stopped: ${stopName({ kind, name })}`, "bad");
  return items;
}

/**
 * Show the stops in force, and the forms to add one.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showStops(place, signal) {
  if (!may("admin")) {
    return replace(place, missingScope("use the emergency stop", "admin"));
  }
  const list = h("div");
  /** @param {Api.StopView[]} stops */
  const show = (stops) => replace(list, stopsShown(stops, show));
  replace(place, h("section", { class: "card stop-now" },
    h("div", null, h("h2", null, "Stop everything"), h("p", { class: "soft" }, KINDS.all[1])),
    button("Stop everything…", async () => {
      const stops = await stop("all", "");
      if (stops) show(stops);
    }, { tone: "danger stop" })),
  h("h2", null, "Stopped now"), list, h("h2", null, "Stop one thing"), partForm(show, signal));
  on("stops", () => show(live.stops), signal);
  return load(list, () => listed(signal), (stops) => stopsShown(stops, show), signal);
}

/** @param {Api.StopView[]} stops @param {(stops: Api.StopView[]) => void} show */
function stopsShown(stops, show) {
  if (!stops.length) return h("p", null, badge("good", "nothing is stopped"));
  return h("ul", { class: "stops" }, stops.map((one) => h("li", { class: "card row between" },
    h("span", null, badge("bad", stopName(one)), " ", one.reason || "no reason given", " ",
      h("span", { class: "soft small" }, "by ", one.by || "?", ", ", when(one.at))),
    may("human") ? button("Release…", async () => {
      const left = await release(one);
      if (left) show(left);
    }, { label: `Release ${stopName(one)}` })
      : h("span", { class: "soft small" },
        "Only a person may release it: your token lacks the scope 'human'."))));
}

/** @param {(stops: Api.StopView[]) => void} show @param {AbortSignal} signal */
function partForm(show, signal) {
  const names = h("datalist", { id: "stop-names" });
  const name = h("input", { list: "stop-names", maxlength: "128", autocomplete: "off" });
  const named = field("Name of the agent or tool", name);
  const about = h("p", { class: "soft small" });
  const problem = h("div");
  const kind = select(Object.entries(KINDS).filter(([key]) => key !== "all")
    .map(([key, [text]]) => [key, text]), "agent", () => choose());
  const choose = async () => {
    named.hidden = kind.value === "network";
    replace(about, KINDS[kind.value][1]);
    if (named.hidden) return;
    try {
      const found = await known(kind.value, signal);
      replace(names, found.map((one) => h("option", { value: one })));
    } catch (cause) {
      if (cause.name !== "AbortError") replace(problem, failed(cause, choose));
    }
  };
  const go = button("Stop…", async () => {
    if (!named.hidden && !name.value.trim()) {
      name.focus();
      return toast("Enter a name first.", "bad");
    }
    const stops = await stop(kind.value, named.hidden ? "" : name.value.trim());
    if (stops) show(stops);
    return null;
  }, { tone: "danger" });
  choose();
  return h("div", { class: "card stop-part" }, h("div", { class: "settings-form" },
    field("What", kind), named), about, h("div", { class: "row" }, go), names, problem);
}

/**
 * The known names of a kind.
 * @param {string} kind @param {AbortSignal} signal
 */
async function known(kind, signal) {
  if (kind === "tool") {
    return may("tools:read") ? (await get("/v1/tools", null, { signal })).items
      .map((one) => one.name) : [];
  }
  const { agents } = await get("/v1/agents", null, { signal });
  return [...new Set([...agents.map((one) => one.name), ...fleet.keys()])].sort();
}
