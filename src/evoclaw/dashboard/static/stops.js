// @ts-check
// The banner of the emergency stop: on every view, while something is stopped.

import { del } from "./api.js";
import { clean, h, lookup, replace } from "./dom.js";
import { known, may } from "./live.js";
import { button, confirmed, toast, when } from "./components.js";

const NAMES = lookup({ all: "everything", network: "the network" });

/**
 * What is stopped, in words.
 * @param {{kind: string, name?: string}} options
 */
export const stopName = ({ kind, name }) => (name ? `${kind} ${name}` : NAMES[kind] || kind);

/**
 * Release a stop after confirmation; returns the stops still in force, or null if cancelled.
 * @param {Api.StopView} stop
 */
export async function release(stop) {
  const sure = await confirmed(`Release ${stopName(stop)}?`,
    "What was stopped may run again immediately.", { action: "Release", tone: "primary" });
  if (sure === null) return null;
  const { items } = await del(`/v1/stops/${encodeURIComponent(stop.kind)}`, { name: stop.name });
  toast(`Released: ${stopName(stop)}`);
  return items;
}

/**
 * The command that releases a stop, for those whose token may not.
 * @param {Api.StopView} stop
 */
export function releaseCommand({ kind, name = "" }) {
  const quoted = /^[\w.-]+$/.test(name) ? name : `'${name.replace(/'/g, "'\\''")}'`;
  return `evoclaw stop --release --${clean(kind)}${name ? ` ${clean(quoted)}` : ""}`;
}

/**
 * Show who stopped what, when and why, with a button that releases it, or the command that does.
 * @param {HTMLElement} place
 */
export function showStopBanner(place) {
  replace(place, known.stops.map((stop) => h("div", { class: "stop-banner row between",
    role: "alert" },
    h("span", null, h("strong", null, `Emergency stop: ${clean(stopName(stop))}`),
      stop.by && ` · by ${clean(stop.by)}`, Boolean(stop.at) && [" · ", when(stop.at)],
      stop.reason && ` · ${clean(stop.reason)}`),
    may("admin") && may("human")
      ? button("Release…", () => release(stop), { label: `Release ${stopName(stop)}` })
      : h("span", { class: "small" }, "To release it, run ",
        h("code", null, releaseCommand(stop)), " on the orchestrator's machine"))));
}
