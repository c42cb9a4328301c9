// @ts-check
// The delegation graph: layers of agents and edges, and the same as a table.

import { get } from "../../api.js";
import { h, onAbort, oneLine, perFrame, replace, s } from "../../dom.js";
import { count, percent, some } from "../../format.js";
import { fleet, on } from "../../live.js";
import { badge, button, empty, failed, select, table, when } from "../../components.js";

/**
 * @typedef {{name: string, depth: number, calls: number, kind: string}} MapNode
 * @typedef {{nodes: MapNode[], links: Api.Delegation[], hidden: number}} DelegationMap
 * @typedef {{x: number, y: number}} Spot
 */

const MAX_NODES = 60; // nodes that are drawn
const ROW = 34, BOX = 24, TOP = 12, BETWEEN = 96, MAX_DEPTH = 4;
const SPANS = [["86400", "the last 24 hours"], ["604800", "the last 7 days"],
  ["2592000", "the last 30 days"]];
const wish = { span: "86400" };

/**
 * Show the graph, reloaded when runs change.
 * @param {HTMLElement} root @param {HTMLElement} tabs @param {AbortSignal} signal
 */
export function mapPage(root, tabs, signal) {
  const drawing = h("div", { class: "map-place" }), rows = h("div");
  const summary = h("p", { class: "soft small", role: "status" });
  /** @type {Api.Delegation[]} */
  let found = [];
  let width = 0, asked = 0;
  const ask = async () => {
    asked = Date.now();
    try {
      const since = Math.floor(Date.now() / 1000 - Number(wish.span));
      found = (await get("/v1/fleet/delegations", { since }, { signal })).items;
      show();
    } catch (cause) {
      if (cause.name === "AbortError") return;
      replace(drawing, failed(cause, ask));
      replace(rows);
      replace(summary);
    }
  };
  const show = () => {
    const map = layered(found);
    replace(drawing, found.length ? drawn(map, drawing.clientWidth) : empty(
      "No delegations in this period.",
      h("p", null, "Agents delegate to edges with edge_call, and to other agents with delegate.")));
    replace(summary, found.length ? sentence(found, map) : null);
    replace(rows, found.length > 0 && delegationTable(found));
  };
  replace(root, tabs, h("div", { class: "row between" },
    h("label", { class: "row small map-span" }, "Period", select(SPANS, wish.span, (value) => {
      wish.span = value;
      ask();
    })), h("span", { class: "row" }, legend(), button("Refresh", ask))), drawing, summary, rows);
  const sizes = new ResizeObserver(perFrame(() => {
    if (Math.abs(drawing.clientWidth - width) < 2) return;
    width = drawing.clientWidth;
    if (found.length) show();
  }));
  sizes.observe(drawing);
  onAbort(signal, () => sizes.disconnect());
  let later = 0; // runs change often: at most one request in three seconds
  on("runs", () => {
    clearTimeout(later);
    later = setTimeout(ask, Math.max(0, asked + 3000 - Date.now()));
  }, signal);
  onAbort(signal, () => clearTimeout(later));
  return ask();
}

function legend() {
  return h("span", { class: "soft small map-legend" },
    "Wider lines: more calls. Dashed lines with ✕: some calls failed.");
}

/** @param {Api.Delegation[]} found @param {DelegationMap} options */
function sentence(found, { nodes, hidden }) {
  const calls = sum(found, "calls"), errors = sum(found, "errors");
  return `${some(calls, "call")}, ${errors} failed.`
    + (hidden ? ` The graph shows the busiest ${nodes.length}; the table also has the `
      + `other ${hidden}.` : "");
}

/** @param {{[name: string]: any}[]} items @param {string} key */
const sum = (items, key) => items.reduce((total, one) => total + one[key], 0);

/**
 * Choose the nodes and their columns: a source is left of its targets.
 * @param {Api.Delegation[]} found @returns {DelegationMap}
 */
export function layered(found) {
  /** @type {Map<string, number>} */
  const weight = new Map();
  /** @type {Map<string, string>} */
  const kinds = new Map();
  for (const one of found) {
    for (const name of [one.source, one.target]) {
      weight.set(name, (weight.get(name) || 0) + one.calls);
    }
    kinds.set(one.target, one.kind);
  }
  const heaviest = [...weight].sort((a, b) => b[1] - a[1]).slice(0, MAX_NODES);
  const chosen = new Set(heaviest.map(([name]) => name));
  const links = found.filter((one) => chosen.has(one.source) && chosen.has(one.target));
  const depth = depths([...chosen], links);
  const nodes = [...chosen].map((name) => ({ name, depth: depth.get(name) ?? 0,
    calls: weight.get(name) ?? 0, kind: kinds.get(name) || (fleet.has(name) ? "edge" : "agent") }));
  return { nodes, links, hidden: weight.size - chosen.size };
}

/**
 * The columns by depth; a cycle ends at the last column.
 * @param {string[]} names @param {Api.Delegation[]} links
 */
function depths(names, links) {
  const depth = new Map(names.map((name) => [name, 0]));
  for (let round = 1; round < MAX_DEPTH; round += 1) {
    for (const { source, target } of links) {
      if (source !== target && depth.get(source) === round - 1) {
        depth.set(target, Math.max(depth.get(target) ?? 0, round));
      }
    }
  }
  const used = [...new Set(depth.values())].sort((a, b) => a - b); // no column stays empty
  for (const [name, old] of depth) depth.set(name, used.indexOf(old));
  return depth;
}

/** @param {DelegationMap} options @param {number} wide */
function drawn({ nodes, links }, wide) {
  const width = Math.max(280, wide || 900);
  const columns = placed(nodes, links);
  const box = Math.min(220, (width - BETWEEN * (columns.length - 1)) / columns.length - 2);
  const tallest = Math.max(...columns.map((column) => column.length));
  /** @type {Map<string, Spot>} */
  const spots = new Map();
  const height = tallest * ROW + TOP * 2;
  columns.forEach((column, index) => {
    const x = columns.length < 2 ? 1 : 1 + (index * (width - box - 2)) / (columns.length - 1);
    column.forEach((node, row) => spots.set(node.name,
      { x, y: TOP + ((row + 0.5) * tallest * ROW) / column.length }));
  });
  const most = Math.max(...links.map((one) => one.calls), 1);
  return s("svg", { class: "map", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "delegations; also available as a table below" },
  links.map((one, index) => line(one, spots, box, most, 0.3 + 0.1 * (index % 5))),
  nodes.map((node) => nodeOf(node, spots.get(node.name) || { x: 0, y: 0 }, box)));
}

/**
 * Sort each column by its neighbours, to keep lines short.
 * @param {MapNode[]} nodes @param {Api.Delegation[]} links
 */
function placed(nodes, links) {
  /** @type {MapNode[][]} */
  const columns = [];
  for (const node of nodes) (columns[node.depth] ||= []).push(node);
  columns[0].sort((a, b) => b.calls - a.calls || (a.name < b.name ? -1 : 1));
  for (let index = 1; index < columns.length; index += 1) {
    const rank = new Map(columns[index - 1].map((node, at) => [node.name, at]));
    /** @param {MapNode} node */
    const middle = (node) => {
      const found = links.filter((one) => one.target === node.name && rank.has(one.source));
      return found.length ? sum(found.map((one) => ({ at: rank.get(one.source) })), "at")
        / found.length : rank.size;
    };
    const middles = new Map(columns[index].map((node) => [node, middle(node)]));
    columns[index].sort((a, b) =>
      (middles.get(a) ?? 0) - (middles.get(b) ?? 0) || b.calls - a.calls);
  }
  return columns;
}

/**
 * @param {Api.Delegation} one @param {Map<string, Spot>} spots @param {number} box
 * @param {number} most @param {number} along
 */
function line(one, spots, box, most, along) {
  const from = spots.get(one.source), to = spots.get(one.target);
  if (!from || !to) return null;
  const ahead = to.x > from.x;
  const x1 = from.x + box, x2 = ahead ? to.x : to.x + box;
  const bend = ahead ? (x2 - x1) / 2 : 36;
  const xs = [x1, x1 + bend, ahead ? x2 - bend : x2 + bend, x2];
  const path = `M${x1} ${from.y} C${xs[1]} ${from.y} ${xs[2]} ${to.y} ${x2} ${to.y}`;
  const wide = 1 + 4 * Math.sqrt(one.calls / most);
  return s("g", { class: one.errors ? "map-line failing" : "map-line" },
    s("path", { d: path, fill: "none", "stroke-width": wide.toFixed(1) },
      s("title", null, `${one.source} → ${one.target}: ${some(one.calls, "call")}, `
        + `${one.errors} failed`)),
    one.errors > 0 && mark(`✕ ${count(one.errors)}`, bezier(xs, along),
      bezier([from.y, from.y, to.y, to.y], along)));
}

/**
 * Where a curve is, a share of its way along.
 * @param {number[]} options @param {number} t
 */
function bezier([a, b, c, d], t) {
  const u = 1 - t;
  return u * u * u * a + 3 * u * u * t * b + 3 * u * t * t * c + t * t * t * d;
}

/** @param {string} text @param {number} x @param {number} y */
function mark(text, x, y) {
  const wide = text.length * 7.6 + 8;
  return [s("rect", { x: x - wide / 2, y: y - 8, width: wide, height: 16, rx: 8 }),
    s("text", { x, y: y + 4, "text-anchor": "middle" }, text)];
}

/** @param {MapNode} node @param {Spot} options @param {number} box */
function nodeOf(node, { x, y }, box) {
  const isEdge = node.kind === "edge", edge = fleet.get(node.name);
  const sign = isEdge ? (edge?.online ? "●" : "○") : "◆";
  const letters = Math.max(4, Math.floor((box - 34) / 7.4));
  const inner = [
    s("rect", { x, y: y - BOX / 2, width: box, height: BOX, rx: isEdge ? 4 : 12 }),
    s("text", { class: "map-sign", x: x + 9, y: y + 4 }, sign),
    s("text", { x: x + 25, y: y + 4 }, oneLine(node.name, letters)),
    s("title", null, `${isEdge ? "edge" : "agent"} ${node.name}: ${some(node.calls, "call")}`)];
  const kind = `map-node ${isEdge ? "edge" : "agent"}${edge?.online ? " online" : ""}`;
  return s("g", { class: kind }, inner);
}

/** @type {Column<Api.Delegation>[]} */
const COLUMNS = [
  { title: "From", cell: (row) => row.source },
  { title: "To", cell: (row) => (row.kind === "edge"
    ? h("a", { href: `#/fleet/${encodeURIComponent(row.target)}` }, row.target) : row.target) },
  { title: "Kind", cell: (row) => (row.kind === "edge" ? "edge" : "agent") },
  { title: "Calls", number: true, cell: (row) => count(row.calls) },
  { title: "Failed", number: true, cell: (row) => (row.errors
    ? badge("bad", `${count(row.errors)} (${percent(row.errors / row.calls)})`) : "0") },
  { title: "Last", cell: (row) => when(row.last) },
];

/**
 * The delegations as a table.
 * @param {Api.Delegation[]} found
 */
export function delegationTable(found) {
  const sorted = [...found].sort((a, b) => b.calls - a.calls);
  return table("delegations, most calls first", COLUMNS, sorted.slice(0, 500));
}
