// @ts-check
// One edge: status, tools, delegations and recent calls.

import { get } from "../../api.js";
import { h, lookup, oneLine, replace, setText, ticking } from "../../dom.js";
import { ago, count, duration, millis, some } from "../../format.js";
import { fleet, may, on } from "../../live.js";
import { badge, button, edgeBadge, empty, figure, fold, jsonBlock, load, missingScope, table,
  when } from "../../components.js";
import { approveTools, deliveryBadge, loadLine, mayApprove, ping, revoke } from "./card.js";
import { delegationTable } from "./map.js";

/**
 * The elements of the head that change.
 * @typedef {{head: HTMLElement, state: HTMLElement, says: HTMLElement, note: HTMLElement,
 *   line: HTMLElement, pinged: HTMLElement, figures: {[name: string]: HTMLElement},
 *   approve: HTMLElement, ping: HTMLElement, revoke: HTMLElement, old?: Api.EdgeView}} HeadRefs
 */

const MAX_RECENT = 40; // records that are shown

/**
 * Show one edge, updated live.
 * @param {HTMLElement} root @param {string} id @param {AbortSignal} signal
 */
export function edgePage(root, id, signal) {
  const back = h("p", { class: "back" }, h("a", { href: "#/fleet" }, "← All edges"));
  const head = h("section", { class: "card edge-head", "aria-label": `State of ${id}` });
  const tools = h("section", { "aria-label": "Tools" });
  const asked = h("section", { "aria-label": "Delegations" });
  const lately = h("section", { "aria-label": "Recent calls" });
  /** @type {HeadRefs|null} */
  let refs = null;
  let drawnTools = "";
  const draw = () => {
    const edge = fleet.get(id);
    if (!edge) {
      replace(head, empty(`Unknown edge ${id}. It may not have connected yet.`));
      refs = null;
      return;
    }
    refs ||= headOf(head, id);
    showHead(refs, edge);
    const now = JSON.stringify([edge.tools, edge.approved, edge.waiting]);
    if (now !== drawnTools) {
      drawnTools = now;
      showTools(tools, edge, signal);
    }
  };
  replace(root, back, head, tools, asked, lately);
  on("fleet", draw, signal);
  ticking(() => {
    const edge = fleet.get(id);
    if (refs && edge) showSeen(refs, edge);
  }, signal);
  draw();
  showAsked(asked, id, signal);
  showLately(lately, id, signal);
}

/** @param {HTMLElement} place @param {string} id @param {AbortSignal} signal */
function showAsked(place, id, signal) {
  const body = h("div");
  replace(place, h("h2", null, "Delegations in the last 24 hours"), body);
  load(body, () => get("/v1/fleet/delegations", null, { signal }), ({ items }) => {
    const found = items.filter((one) => one.target === id || one.source === id);
    return found.length ? delegationTable(found) : h("p", { class: "soft" }, "None.");
  }, signal);
}

/** @type {{[name: string]: [string, (edge: Api.EdgeView) => string]}} */
const FIGURES = {
  work: ["running", (edge) => String(edge.in_flight || 0)],
  queued: ["queued", (edge) => String(edge.queued || 0)],
  room: ["free slots", (edge) => count(edge.room)],
  cpu: ["CPU", (edge) => (edge.uptime_s ? `${count(Math.round(edge.cpu_percent || 0))} %` : "–")],
  memory: ["memory", (edge) => (edge.memory_mb ? `${count(Math.round(edge.memory_mb))} MB` : "–")],
  up: ["uptime", (edge) => (edge.uptime_s ? duration(edge.uptime_s) : "–")],
  seen: ["last seen", (edge) => ago(edge.last_seen)],
};

/** @param {HTMLElement} place @param {string} id @returns {HeadRefs} */
function headOf(place, id) {
  /** @type {HeadRefs} */
  const refs = { head: place, state: h("span"), says: h("p", { class: "soft" }),
    note: h("div", { role: "status" }), line: h("div", { class: "edge-line wide" }),
    pinged: h("span", { class: "soft small", role: "status" }),
    figures: Object.fromEntries(Object.entries(FIGURES)
      .map(([name, [text]]) => [name, figure(text, "")])),
    approve: button("Approve tools…", () => approveTools(fleet.get(id)), { tone: "primary" }),
    ping: button("Ping", () => ping(id, refs.pinged)),
    revoke: button("Revoke…", () => revoke(id), { tone: "danger" }) };
  replace(place,
    h("div", { class: "row between" }, h("h2", { class: "edge-title" }, id), refs.state),
    refs.says, refs.note,
    h("div", { class: "row edge-figures" }, Object.values(refs.figures)), refs.line,
    h("div", { class: "row" }, refs.approve, refs.ping, refs.revoke, refs.pinged));
  return refs;
}

/** @param {HeadRefs} refs @param {Api.EdgeView} edge */
function showHead(refs, edge) {
  const { old } = refs;
  refs.old = edge;
  const waiting = (edge.waiting || []).length;
  setText(refs.says, [edge.type, edge.summary].filter(Boolean).join(" — ")
    || "No description.");
  if (!old || old.online !== edge.online || old.state !== edge.state
    || old.has_model !== edge.has_model
    || old.delivery_guarantees !== edge.delivery_guarantees) {
    replace(refs.state, edgeBadge(edge), " ", badge("quiet", `trust: ${edge.state}`), " ",
      edge.has_model && badge("quiet", "has a model"), " ", deliveryBadge(edge));
  }
  if (!old || old.problem !== edge.problem || (old.waiting || []).length !== waiting) {
    replace(refs.note, edge.problem && badge("bad", oneLine(edge.problem, 300)),
      waiting > 0 && badge("warn", `${some(waiting, "tool waits", "tools wait")} for approval`));
  }
  for (const [name, [, text]] of Object.entries(FIGURES)) {
    setText(refs.figures[name].firstChild, text(edge));
  }
  if (String(old?.loads) !== String(edge.loads)) replace(refs.line, loadLine(edge, 600, 40));
  refs.ping.hidden = !edge.online;
  refs.approve.hidden = !waiting || !mayApprove();
  refs.revoke.hidden = edge.state === "revoked" || edge.state === "unknown" || !may("fleet:write");
}

/** @param {HeadRefs} refs @param {Api.EdgeView} edge */
function showSeen(refs, edge) {
  setText(refs.figures.seen.firstChild, FIGURES.seen[1](edge));
}

/** @param {HTMLElement} place @param {Api.EdgeView} edge @param {AbortSignal} signal */
function showTools(place, edge, signal) {
  const names = [...new Set([...(edge.tools || []), ...(edge.approved || []),
    ...(edge.waiting || [])])].sort();
  const body = h("div");
  replace(place, h("h2", null, `Tools (${names.length})`), body);
  if (!names.length) return replace(body, empty("The edge offers no tools."));
  return load(body, () => described(edge.agent_id, signal), ({ own, here }) =>
    h("ul", { class: "edge-toolset" }, names.map((name) =>
      toolRow(name, edge, own.get(name), here.get(name)))), signal);
}

/**
 * The tools as the edge describes them, and the orchestrator's tools of the same names.
 * @param {string} id @param {AbortSignal} signal
 */
async function described(id, signal) {
  /** @param {{items: Api.ToolView[]}} options */
  const byName = ({ items }) => new Map(items.map((tool) => [tool.name, tool]));
  /** @type {{items: Api.ToolView[]}} */
  const none = { items: [] };
  const [own, here] = await Promise.all([
    get(`/v1/fleet/${encodeURIComponent(id)}/tools`, null, { signal }),
    may("tools:read") ? get("/v1/tools", null, { signal }) : none]);
  return { own: byName(own), here: byName(here) };
}

/**
 * @param {string} name @param {Api.EdgeView} edge @param {Api.ToolView} [own]
 * @param {Api.ToolView} [here]
 */
function toolRow(name, edge, own, here) {
  const tool = own || here;
  const about = fold(h("span", { class: "edge-tool" }, h("code", null, name),
    h("span", null, standing(name, edge)),
    h("span", { class: "soft small" }, tool ? oneLine(tool.description, 90) : "")), () => (tool
    ? [h("p", { class: "soft small" }, own ? "As described by the edge, not verified."
      : "Not approved yet. This is the description of the orchestrator's tool with this name; "
      + "the edge's tool may differ."),
    h("p", { class: "said" }, tool.description),
    h("p", { class: "small" }, `Effect: ${tool.effect}; permissions: ${tool.permissions.join(", ")
      || "none"}; timeout: ${duration(tool.timeout)}, at most ${duration(tool.max_timeout)}.`),
    jsonBlock(tool.parameters, `schema of ${name}`)]
    : h("p", { class: "soft" }, "Its arguments are shown once it is approved.")));
  return h("li", null, about);
}

/** @param {string} name @param {Api.EdgeView} edge */
function standing(name, edge) {
  if ((edge.waiting || []).includes(name)) return badge("warn", "waits for approval");
  if (!(edge.tools || []).includes(name)) return badge("quiet", "not offered");
  if ((edge.approved || []).includes(name)) return badge("good", "approved");
  return badge("quiet", edge.state === "unknown" ? "no approval needed" : "not approved");
}

const RESULTS = lookup({ success: "good", waiting: "warn", denied: "bad" });
/** @type {Column<Api.JsonObject<any>>[]} */
const COLUMNS = [
  { title: "When", cell: (row) => when(row.at) },
  { title: "By", cell: (row) => row.agent_id || "–" },
  { title: "What", main: true, cell: what },
  { title: "Result", cell: (row) => badge(RESULTS[row.result] || (row.error ? "bad" : "quiet"),
    row.result || row.kind) },
  { title: "Took", number: true, cell: (row) =>
    (row.elapsed_ms ? millis(row.elapsed_ms) : "–") },
  { title: "Run", cell: (row) => (row.run_id
    ? h("a", { href: `#/runs/${encodeURIComponent(row.run_id)}` }, row.run_id.slice(0, 8)) : "–") },
];

/** @param {Api.JsonObject<any>} row */
function what(row) {
  const action = row.parameters?.action || "";
  const asked = action || row.parameters?.query || "";
  return h("span", null, h("code", null, row.tool || row.kind),
    asked && ` ${oneLine(asked, 60)}`,
    row.error && h("span", { class: "edge-error small" }, oneLine(row.error, 140)));
}

/** @param {HTMLElement} place @param {string} id @param {AbortSignal} signal */
function showLately(place, id, signal) {
  const body = h("div");
  const again = () => load(body, () => lately(id, signal), (rows) => (rows.length
    ? table(`recent calls on ${id}, the newest first`, COLUMNS, rows)
    : empty("No calls yet.")), signal);
  replace(place, h("div", { class: "row between" }, h("h2", null, "Recent calls"),
    may("audit:read") && button("Refresh", again)), body);
  if (may("audit:read")) return again();
  return replace(body, missingScope("read the audit log", "audit:read"));
}

/**
 * Audit records of the edge itself, and calls that were sent to it.
 * @param {string} id @param {AbortSignal} signal
 */
async function lately(id, signal) {
  const [own, sent] = await Promise.all([
    get("/v1/audit", { agent: id, limit: MAX_RECENT }, { signal }),
    get("/v1/audit", { kind: "call", text: id, limit: 200 }, { signal })]);
  const rows = [...own.items, ...sent.items.filter((row) => isFor(row.parameters?.agent_id, id))];
  const once = new Map(rows.map((row) => [row.seq, row]));
  return [...once.values()].sort((a, b) => b.seq - a.seq).slice(0, MAX_RECENT);
}

/** @param {unknown} target @param {string} id */
const isFor = (target, id) => (Array.isArray(target) ? target.includes(id) : target === id);
