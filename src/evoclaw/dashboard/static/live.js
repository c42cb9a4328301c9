// Live state: one event stream for the whole dashboard, and its latest data.

import { follow, get, keepFor } from "./api.js";

/** The edges by id. */
export const fleet = new Map();
/** The runs by id. */
export const runs = new Map();
/** The current user, what waits for a person, and the state of the connection. */
export const known = { me: null, approvals: [], questions: [], stops: [], link: "away" };

const listeners = new Map();

/** Subscribe to changes of a kind: `fleet`, `runs`, `approvals`, `questions`, `stops`, `link`. */
export function on(kind, listener, signal) {
  const all = listeners.get(kind) || new Set();
  listeners.set(kind, all.add(listener));
  signal.addEventListener("abort", () => all.delete(listener), { once: true });
}

function notify(kind, changed) {
  for (const listener of listeners.get(kind) || []) listener(changed);
}

/** Whether the token holds a scope. */
export function may(scope) {
  const held = known.me ? known.me.scopes : [];
  if (held.includes("*") || held.includes(scope)) return true;
  return held.includes("admin") && scope !== "human";
}

/** Clear the state on logout. */
export function forget() {
  fleet.clear();
  runs.clear();
  Object.assign(known, { me: null, approvals: [], questions: [], stops: [], link: "away" });
}

/** Load the current user, then follow changes until aborted. */
export async function begin(signal) {
  known.me = await get("/v1/me", null, { signal });
  keepFor(JSON.stringify([known.me.tenant, known.me.user, known.me.user ? "" : known.me.token]));
  const onState = (state) => {
    known.link = state === "open" ? "open" : "away";
    notify("link", known.link);
  };
  whileSeen(signal, (seen) => follow("/v1/events", { signal: seen, onEvent: take, onState,
    forever: true }).catch(() => onState("away")));
}

/** Work only while the tab is visible: a browser has few connections for all its tabs. */
function whileSeen(signal, work) {
  let seen = null;
  const look = () => {
    if (document.hidden || signal.aborted) {
      seen?.abort();
      seen = null;
    } else if (!seen) {
      seen = new AbortController();
      work(seen.signal);
    }
  };
  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", look, { once: true });
  look();
}

function take(kind, data) {
  if (kind === "fleet") keep(fleet, data, (edge) => edge.agent_id);
  else if (kind === "runs") keep(runs, data, (run) => run.run_id);
  else if (["approvals", "questions", "stops"].includes(kind)) known[kind] = data.items;
  notify(kind, data.items || []);
}

function keep(map, { items, whole }, id) {
  if (whole) map.clear();
  for (const item of items) map.set(id(item), item);
}
