// @ts-check
// Fleet: the edges, their load, waiting approvals, and delegations.

import { h, onAbort, perFrame, replace, setText, ticking } from "../../dom.js";
import { fleet, known, may, on } from "../../live.js";
import { VirtualList } from "../../list.js";
import { empty, figure, missingScope, select } from "../../components.js";
import { edgeCard, showEdge, tickEdge } from "./card.js";
import { edgePage } from "./edge.js";
import { mapPage } from "./map.js";

export const title = "Fleet";

const PHONE = matchMedia("(max-width: 720px)").matches;
const HEIGHT = PHONE ? 208 : 196, MIN_WIDTH = 330; // of a card, in pixels
const order = new Intl.Collator(undefined, { numeric: true }).compare;
/** @param {Api.EdgeView} edge */
const load = (edge) => (edge.in_flight || 0) + (edge.queued || 0);
/** @param {Api.EdgeView} edge */
const waits = (edge) => (edge.waiting || []).length > 0;

/** @type {{[name: string]: [string, (edge: Api.EdgeView) => boolean]}} */
const FILTERS = {
  all: ["all", () => true],
  online: ["online", (edge) => edge.online],
  offline: ["offline", (edge) => !edge.online],
  waiting: ["waiting for approval", waits],
  problem: ["with a problem", (edge) => Boolean(edge.problem)],
};
/** @type {{[name: string]: [string, (a: Api.EdgeView, b: Api.EdgeView) => number]}} */
const SORTS = {
  name: ["name", () => 0],
  load: ["highest load first", (a, b) => load(b) - load(a)],
  seen: ["longest unseen first", (a, b) => (a.last_seen || 0) - (b.last_seen || 0)],
  care: ["problems first", (a, b) => care(b) - care(a)],
};
const wish = { text: "", filter: "all", sort: "name" }; // kept while an edge is shown

/** @param {Api.EdgeView} edge */
function care(edge) {
  if (edge.problem) return 3;
  if (waits(edge)) return 2;
  return edge.online ? 0 : 1;
}

/**
 * Show the fleet, one edge (`#/fleet/EDGE`), or the delegations (`#/fleet?show=map`).
 * @param {HTMLElement} root @param {string[]} options @param {AbortSignal} signal
 */
export async function mount(root, [id], signal) {
  if (!may("fleet:read")) {
    replace(root, missingScope("see the fleet", "fleet:read"));
  } else if (id) edgePage(root, id, signal);
  else if (location.hash.endsWith("?show=map")) mapPage(root, tabs("map"), signal);
  else listPage(root, signal);
}

/** @param {string} here */
function tabs(here) {
  /** @param {string} name @param {string} href @param {string} text */
  const link = (name, href, text) =>
    h("a", { href, "aria-current": here === name ? "page" : null }, text);
  return h("nav", { class: "tabs", "aria-label": "Fleet" },
    link("list", "#/fleet", "Edges"), link("map", "#/fleet?show=map", "Delegations"));
}

/** @param {HTMLElement} root @param {AbortSignal} signal */
function listPage(root, signal) {
  const list = new VirtualList({ label: "edges", height: HEIGHT, narrowest: MIN_WIDTH,
    key: (edge) => edge.agent_id, render: edgeCard, update: showEdge });
  const shown = h("span", { class: "soft small", role: "status" });
  const figures = h("div", { class: "row edge-figures" });
  const none = h("div", { hidden: true });
  const draw = perFrame(() => {
    if (signal.aborted) return;
    const found = wanted();
    list.set(found);
    list.element.hidden = !found.length;
    none.hidden = found.length > 0;
    if (!found.length) replace(none, nothing());
    setText(shown, `${found.length} of ${fleet.size} shown`);
    count(figures);
  });
  replace(root, tabs("list"), figures, tools(draw, shown), list.element, none);
  on("fleet", draw, signal);
  on("link", draw, signal);
  ticking(() => {
    for (const { element } of list.drawn.values()) tickEdge(element);
  }, signal);
  onAbort(signal, () => list.close());
  draw();
}

/** @param {() => void} draw @param {HTMLElement} shown */
function tools(draw, shown) {
  const search = h("input", { type: "search", "aria-label": "Search edges", value: wish.text,
    placeholder: "Search by name, kind, summary or tool", class: "grow" });
  search.addEventListener("input", () => { wish.text = search.value; draw(); });
  /**
   * @param {string} label @param {typeof FILTERS|typeof SORTS} options
   * @param {"filter"|"sort"} key
   */
  const choice = (label, options, key) => h("label", { class: "row small" }, label,
    select(Object.entries(options).map(([name, [text]]) => [name, text]), wish[key],
      (value) => { wish[key] = value; draw(); }));
  return h("div", { class: "row edge-tools", role: "search" }, search,
    choice("Show", FILTERS, "filter"), choice("Sort by", SORTS, "sort"), shown);
}

function wanted() {
  const words = wish.text.toLowerCase().split(/\s+/).filter(Boolean);
  const [, fits] = FILTERS[wish.filter], [, compare] = SORTS[wish.sort];
  return [...fleet.values()].filter((edge) => fits(edge) && says(edge, words))
    .sort((a, b) => compare(a, b) || order(a.agent_id, b.agent_id));
}

/** @param {Api.EdgeView} edge @param {string[]} words */
function says(edge, words) {
  if (!words.length) return true;
  const text = [edge.agent_id, edge.type, edge.summary, ...(edge.tools || [])]
    .join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function nothing() {
  if (fleet.size) return empty("No edge matches the search.");
  if (known.link !== "open") return empty("Waiting for the orchestrator…");
  return empty("No edge is paired yet.",
    h("p", null, h("a", { href: "#/settings/pair" }, "Pair a device")));
}

/** @type {[string, (edge: Api.EdgeView) => unknown][]} */
const FIGURES = [
  ["edges", () => 1], ["online", (edge) => edge.online], ["waiting for approval", waits],
  ["with a problem", (edge) => edge.problem], ["running", (edge) => edge.in_flight || 0],
  ["queued", (edge) => edge.queued || 0]];

/**
 * Update the numbers of the fleet in place.
 * @param {HTMLElement} place
 */
function count(place) {
  const all = [...fleet.values()];
  if (!place.firstChild) replace(place, FIGURES.map(([name]) => figure(name, "0")));
  FIGURES.forEach(([, value], index) => {
    const sum = all.reduce((total, edge) => total + Number(typeof value(edge) === "number"
      ? value(edge) : Boolean(value(edge))), 0);
    setText(place.children[index].firstChild, String(sum));
  });
}
