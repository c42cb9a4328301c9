// @ts-check
// The card of an edge, updated in place so that a heartbeat does not move the focus.

import { post, postEmpty, withQuery } from "../../api.js";
import { h, oneLine, replace, setText } from "../../dom.js";
import { ago, count, duration, some } from "../../format.js";
import { fleet, may } from "../../live.js";
import { badge, button, confirmed, edgeBadge, toast } from "../../components.js";
import { sparkline } from "../../plot.js";

/**
 * The elements of a card that change.
 * @typedef {object} CardParts
 * @property {HTMLElement} state
 * @property {HTMLElement} summary
 * @property {HTMLElement} load
 * @property {HTMLElement} line
 * @property {HTMLElement} machine
 * @property {HTMLElement} seen
 * @property {HTMLElement} tools
 * @property {HTMLElement} note
 * @property {HTMLElement} pinged
 * @property {HTMLElement} approve
 * @property {HTMLElement} ping
 * @property {HTMLElement} revoke
 * @property {Api.EdgeView} [edge]
 */

/** @type {WeakMap<HTMLElement, CardParts>} */
const parts = new WeakMap();

/**
 * The load of an edge, as a text.
 * @param {Api.EdgeView} edge
 */
export function loadText(edge) {
  const known = edge.room !== undefined && edge.room !== null;
  const room = known ? ` · ${count(edge.room)} free` : "";
  return `${edge.in_flight || 0} running · ${edge.queued || 0} queued${room}`;
}

/**
 * CPU, memory and uptime of an edge, as far as known.
 * @param {Api.EdgeView} edge
 */
export function machineText(edge) {
  const facts = [];
  if (edge.uptime_s) {
    facts.push(`CPU ${count(Math.round(edge.cpu_percent || 0))} %`,
      `${count(Math.round(edge.memory_mb || 0))} MB`, `up ${duration(edge.uptime_s)}`);
  }
  return facts.length ? facts.join(" · ") : "no heartbeat yet";
}

/**
 * When the last heartbeat arrived.
 * @param {Api.EdgeView} edge
 */
export const seenText = (edge) => (edge.last_seen ? `seen ${ago(edge.last_seen)}` : "never seen");

/**
 * The recent load, as a sparkline.
 * @param {Api.EdgeView} edge @param {number} [width] @param {number} [height]
 */
export function loadLine(edge, width, height) {
  const loads = edge.loads || [];
  const most = loads.length ? Math.max(...loads) : 0;
  return sparkline(loads.length > 1 ? loads : [0, 0],
    `load at the last ${some(loads.length, "heartbeat")}, maximum ${most}`, width, height);
}

/**
 * Make the card of an edge.
 * @param {Api.EdgeView} edge
 */
export function edgeCard(edge) {
  const id = edge.agent_id;
  /** @type {CardParts} */
  const mine = {
    state: h("span"), summary: h("p", { class: "edge-summary soft" }), load: h("span"),
    line: h("span", { class: "edge-line" }), machine: h("span"), seen: h("span"),
    tools: h("span"), note: h("span", { class: "edge-note" }),
    pinged: h("span", { class: "edge-pinged soft", role: "status" }),
    approve: button("Approve…", () => approveTools(fleet.get(id)),
      { tone: "primary", label: `Approve tools of ${id}` }),
    ping: button("Ping", () => ping(id, mine.pinged), { label: `Ping ${id}` }),
    revoke: button("Revoke…", () => revoke(id), { tone: "danger", label: `Revoke ${id}` }),
  };
  const made = h("div", { class: "edge-cell" }, h("article", { class: "card edge-card" },
    h("header", { class: "row between" },
      h("h2", null, h("a", { href: `#/fleet/${encodeURIComponent(id)}` }, id)), mine.state),
    h("div", { class: "edge-says" }, mine.note, mine.summary),
    h("div", { class: "edge-load" }, mine.load, mine.line),
    h("div", { class: "edge-facts soft small" }, mine.machine),
    h("div", { class: "edge-facts soft small" }, mine.tools, " · ", mine.seen),
    h("footer", { class: "edge-foot" }, mine.pinged, mine.ping, mine.approve, mine.revoke)));
  parts.set(made, mine);
  showEdge(made, edge);
  return made;
}

/**
 * Show an edge on its card as it is now.
 * @param {HTMLElement} element @param {Api.EdgeView} edge
 */
export function showEdge(element, edge) {
  const mine = parts.get(element), old = mine?.edge;
  if (!mine) return;
  const waiting = edge.waiting || [], tools = edge.tools || [];
  mine.edge = edge;
  if (!old || old.online !== edge.online || old.state !== edge.state) {
    replace(mine.state, edgeBadge(edge));
  }
  const words = [edge.type, edge.summary].filter(Boolean).join(" — ");
  setText(mine.summary, oneLine(words || "No description", 160));
  setText(mine.load, loadText(edge));
  if (String(old?.loads) !== String(edge.loads) || !old) replace(mine.line, loadLine(edge));
  setText(mine.machine, machineText(edge));
  setText(mine.tools, some(tools.length, "tool"));
  setText(mine.seen, seenText(edge));
  if (!old || old.problem !== edge.problem || (old.waiting || []).length !== waiting.length
    || old.delivery_guarantees !== edge.delivery_guarantees) {
    replace(mine.note, noteOf(edge));
  }
  mine.ping.hidden = !edge.online || !may("fleet:read");
  mine.approve.hidden = !waiting.length || !mayApprove();
  mine.revoke.hidden = edge.state === "revoked" || edge.state === "unknown" || !may("fleet:write");
}

/**
 * Update the time since the last heartbeat.
 * @param {HTMLElement} element
 */
export function tickEdge(element) {
  const mine = parts.get(element);
  if (mine?.edge) setText(mine.seen, seenText(mine.edge));
}

/** @param {Api.EdgeView} edge */
function noteOf(edge) {
  const { problem } = edge;
  if (problem) {
    return h("span", { title: oneLine(problem, 500) }, badge("bad", oneLine(problem, 90)));
  }
  const number = (edge.waiting || []).length;
  if (number) return badge("warn", `${some(number, "tool waits", "tools wait")} for approval`);
  return deliveryBadge(edge);
}

/**
 * Says of an edge that speaks only the basic messages that its calls may get lost.
 * @param {Api.EdgeView} edge
 */
export function deliveryBadge(edge) {
  return edge.delivery_guarantees === false ? badge("quiet", "no delivery guarantees") : null;
}

/** Whether the user may approve an edge's tools: only a person may. */
export const mayApprove = () => may("fleet:write") && may("human");

/**
 * Ping an edge, and show the round-trip time.
 * @param {string} id @param {HTMLElement} place
 */
export async function ping(id, place) {
  setText(place, "pinging…");
  try {
    const { seconds } = await postEmpty(`/v1/fleet/${encodeURIComponent(id)}/ping`);
    setText(place, `answered in ${duration(seconds)}`);
  } catch (cause) {
    setText(place, cause.message);
  }
}

/**
 * Approve the tools of an edge after confirmation; returns whether all are approved.
 * @param {Api.EdgeView} [edge]
 */
export async function approveTools(edge) {
  if (!edge) return false;
  const waiting = edge.waiting || [];
  const text = "Agents may use these tools on the edge: "
    + `${waiting.map((name) => oneLine(name, 80)).join(", ")}.`;
  const asked = `Approve ${some(waiting.length, "tool")} of ${edge.agent_id}?`;
  if (await confirmed(asked, text, { action: "Approve", tone: "primary" }) === null) return false;
  // The edge may offer other tools by now: approve only those that were shown.
  const now = await post(withQuery(`/v1/fleet/${encodeURIComponent(edge.agent_id)}/approve`,
    { seen: edge.surface }));
  const left = (now.waiting || []).length;
  toast(left ? `${some(left, "tool")} of ${edge.agent_id} still need approval`
    : `The tools of ${edge.agent_id} are approved`);
  return left === 0;
}

/**
 * Revoke an edge after confirmation.
 * @param {string} id
 */
export async function revoke(id) {
  const text = "The edge loses access immediately: it cannot connect, and its tools are no longer "
    + "offered. To use it again, you must invite and pair it again.";
  if (await confirmed(`Revoke ${id}?`, text, { action: "Revoke" }) === null) return;
  await post(`/v1/fleet/${encodeURIComponent(id)}/revoke`);
  toast(`Revoked ${id}`);
}
