// @ts-check
// Live state: one event stream for the whole dashboard, and its latest data.

import { follow, get, keepFor } from "./api.js";
import { onAbort } from "./dom.js";

/** The edges by id.
 * @type {Map<string, Api.EdgeView>} */
export const fleet = new Map();
/** The runs by id.
 * @type {Map<string, Api.RunView>} */
export const runs = new Map();
/** The current user, what waits for a person, and the state of the connection.
 * @type {{me: Api.Whoami|null, approvals: Api.ApprovalView[], questions: Api.QuestionView[],
 *   stops: Api.StopView[], link: LinkState}} */
export const known = { me: null, approvals: [], questions: [], stops: [], link: "away" };

/** @type {Map<string, Set<(changed: any) => void>>} */
const listeners = new Map();

/**
 * Subscribe to changes of a kind.
 * @template {keyof Changes} Kind
 * @param {Kind} kind
 * @param {(changed: Changes[Kind]) => void} listener
 * @param {AbortSignal} signal
 */
export function on(kind, listener, signal) {
  const all = listeners.get(kind) || new Set();
  listeners.set(kind, all.add(listener));
  onAbort(signal, () => all.delete(listener));
}

/**
 * @param {string} kind
 * @param {unknown} changed
 */
function notify(kind, changed) {
  for (const listener of listeners.get(kind) || []) listener(changed);
}

/**
 * Whether the token holds a scope.
 * @param {string} scope
 */
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

/** The current user; there is one while a view is shown. */
export function me() {
  if (!known.me) throw new Error("You are not logged in.");
  return known.me;
}

/**
 * Load the current user, then follow changes until aborted.
 * @param {AbortSignal} signal
 */
export async function begin(signal) {
  const { tenant, user, token } = known.me = await get("/v1/me", null, { signal });
  keepFor(JSON.stringify([tenant, user, user ? "" : token]));
  /** @param {string} state */
  const onState = (state) => {
    known.link = state === "open" ? "open" : "away";
    notify("link", known.link);
  };
  whileSeen(signal, (seen) => follow("/v1/events", { signal: seen, onEvent: take, onState,
    forever: true }).catch(() => onState("away")));
}

/**
 * Work only while the tab is visible: a browser has few connections for all its tabs.
 * @param {AbortSignal} signal
 * @param {(seen: AbortSignal) => void} work
 */
function whileSeen(signal, work) {
  /** @type {AbortController|null} */
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

/**
 * @param {string} kind
 * @param {{items: any[], whole?: boolean}} data
 */
function take(kind, data) {
  if (kind === "fleet") keep(fleet, data, (edge) => edge.agent_id);
  else if (kind === "runs") keep(runs, data, (run) => run.run_id);
  else if (kind === "approvals" || kind === "questions" || kind === "stops") {
    known[kind] = data.items;
  }
  notify(kind, data.items || []);
}

/**
 * @template Item
 * @param {Map<string, Item>} map
 * @param {{items: Item[], whole?: boolean}} data
 * @param {(item: Item) => string} id
 */
function keep(map, { items, whole }, id) {
  if (whole) map.clear();
  for (const item of items) map.set(id(item), item);
}
