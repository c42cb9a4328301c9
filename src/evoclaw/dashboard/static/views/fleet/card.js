// One edge on a card: changed in place, so that a heartbeat takes no focus away.

import { post, postEmpty, withQuery } from "../../api.js";
import { h, oneLine, replace, setText } from "../../dom.js";
import { ago, count, duration, some } from "../../format.js";
import { fleet, may } from "../../live.js";
import { badge, button, confirmed, edgeBadge, toast } from "../../parts.js";
import { sparkline } from "../../plot.js";

const parts = new WeakMap(); // of a card, its pieces that change

/** What an edge has to do, as a sentence. */
export function loadText(edge) {
  const room = edge.room === undefined || edge.room === null ? "" : ` · room ${count(edge.room)}`;
  return `${edge.in_flight || 0} at work · ${edge.queued || 0} queued${room}`;
}

/** How an edge's machine is, as far as it says. */
export function machineText(edge) {
  const said = [];
  if (edge.uptime_s) {
    said.push(`cpu ${count(Math.round(edge.cpu_percent || 0))} %`,
      `${count(Math.round(edge.memory_mb || 0))} MB`, `up ${duration(edge.uptime_s)}`);
  }
  return said.length ? said.join(" · ") : "says nothing of its machine yet";
}

/** When it last gave a sign of life. */
export const seenText = (edge) => (edge.last_seen ? `seen ${ago(edge.last_seen)}` : "never seen");

/** What it had to do lately, drawn. */
export function loadLine(edge, width, height) {
  const loads = edge.loads || [];
  const most = loads.length ? Math.max(...loads) : 0;
  return sparkline(loads.length > 1 ? loads : [0, 0],
    `load at the last ${some(loads.length, "heartbeat")}, at most ${most}`, width, height);
}

/** Make the card of an edge. */
export function edgeCard(edge) {
  const id = edge.agent_id, mine = {
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

/** Show an edge on its card as it is now. */
export function showEdge(element, edge) {
  const mine = parts.get(element), old = mine.edge;
  const waiting = edge.waiting || [], tools = edge.tools || [];
  mine.edge = edge;
  if (!old || old.online !== edge.online || old.state !== edge.state) {
    replace(mine.state, edgeBadge(edge));
  }
  const words = [edge.type, edge.summary].filter(Boolean).join(" — ");
  setText(mine.summary, oneLine(words || "says nothing of itself", 160));
  setText(mine.load, loadText(edge));
  if (String(old?.loads) !== String(edge.loads) || !old) replace(mine.line, loadLine(edge));
  setText(mine.machine, machineText(edge));
  setText(mine.tools, some(tools.length, "tool"));
  setText(mine.seen, seenText(edge));
  if (!old || old.problem !== edge.problem || (old.waiting || []).length !== waiting.length) {
    replace(mine.note, noteOf(edge));
  }
  mine.ping.hidden = !edge.online || !may("fleet:read");
  mine.approve.hidden = !waiting.length || !mayApprove();
  mine.revoke.hidden = edge.state === "revoked" || edge.state === "unknown" || !may("fleet:write");
}

/** Say anew how long ago it was seen. */
export function tickEdge(element) {
  const mine = parts.get(element);
  setText(mine.seen, seenText(mine.edge));
}

function noteOf(edge) {
  const { problem } = edge;
  if (problem) {
    return h("span", { title: oneLine(problem, 500) }, badge("bad", oneLine(problem, 90)));
  }
  const number = (edge.waiting || []).length;
  return number ? badge("warn", `${some(number, "tool waits", "tools wait")} for approval`) : null;
}

/** Whether whoever is here may approve an edge's tools: only a person may. */
export const mayApprove = () => may("fleet:write") && may("human");

/** Ask an edge whether it is there, and show how long the answer took. */
export async function ping(id, place) {
  setText(place, "asking…");
  try {
    const { seconds } = await postEmpty(`/v1/fleet/${encodeURIComponent(id)}/ping`);
    setText(place, `answered in ${duration(seconds)}`);
  } catch (cause) {
    setText(place, cause.message);
  }
}

/** Let an edge's tools be used, once a person saw which; gives whether they may be now. */
export async function approveTools(edge) {
  const waiting = edge.waiting || [];
  const text = "From then on agents may use them there: "
    + `${waiting.map((name) => oneLine(name, 80)).join(", ")}.`;
  const asked = `Approve ${some(waiting.length, "tool")} of ${edge.agent_id}?`;
  if (await confirmed(asked, text, { action: "Approve", tone: "primary" }) === null) return false;
  // What the edge offers by now may be something else: only what was shown is approved.
  const now = await post(withQuery(`/v1/fleet/${encodeURIComponent(edge.agent_id)}/approve`,
    { seen: edge.surface }));
  const left = (now.waiting || []).length;
  toast(left ? `${some(left, "tool")} of ${edge.agent_id} still wait`
    : `tools of ${edge.agent_id} approved`);
  return left === 0;
}

/** Shut an edge out, once that was confirmed. */
export async function revoke(id) {
  const text = "It is shut out at once: its tools are no longer offered and it cannot connect. "
    + "To come back it must be invited and join again.";
  if (await confirmed(`Revoke ${id}?`, text, { action: "Revoke" }) === null) return;
  await post(`/v1/fleet/${encodeURIComponent(id)}/revoke`);
  toast(`${id} is revoked`);
}
