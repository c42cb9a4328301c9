// @ts-check
// Notifications: the notifiers of the service, a test message, and this device.

import { get, postEmpty } from "../../api.js";
import { h, lookup, replace } from "../../dom.js";
import { may } from "../../live.js";
import { badge, button, empty, load, missingScope, table, toast, when } from "../../components.js";

const TONES = lookup({ sent: "good", due: "warn", dead: "bad" });
const STATES = lookup({ sent: "sent", due: "retrying", dead: "failed" });
const REPORTS = lookup({ approval: "approvals", question: "questions", failed: "failed runs",
  long_run: "long runs" });

/**
 * Show the notifiers, and the way to add this device.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showNotifications(place, signal) {
  const device = may("approvals:read") && h("section", { class: "card settings-make" },
    h("h2", null, "This device"),
    h("p", null, "Get notifications in this browser when something waits for you, even while the "
      + "dashboard is closed."),
    h("p", null, h("a", { href: "/ui/push.html" }, "Set up notifications on this device")));
  const list = h("div");
  replace(place, device, h("h2", null, "Notifiers"), list);
  if (!may("admin")) return replace(list, missingScope("see notifiers", "admin"));
  const again = () => load(list, () => get("/v1/notify", null, { signal }), ({ items }) =>
    (items.length ? notifiersShown(items, again)
      : empty("No notifiers yet. Add a [[notify]] table to evoclaw.toml.")), signal);
  return again();
}

/** @param {Api.NotifierView[]} items @param {() => unknown} again */
function notifiersShown(items, again) {
  return table("Notifiers", [
    { title: "Name", main: true, cell: (one) => h("strong", null, one.name) },
    { title: "Kind", cell: (one) => one.kind },
    { title: "Reports", cell: (one) => one.on.map((name) => REPORTS[name] || name).join(", ") },
    { title: "One-tap answers", cell: (one) => (one.answers ? "yes" : "no") },
    { title: "Last message", wide: true, cell: lastShown },
    { title: "", cell: (one) => testButton(one, again) },
  ], items);
}

/** @param {Api.NotifierView} options */
function lastShown({ last_state: state, last_problem: problem, last_at: at }) {
  if (!state) return "none yet";
  return h("span", null, badge(TONES[state] || "quiet", STATES[state] || state), " ", when(at),
    problem && h("div", { class: "small" }, problem, state !== "sent"
      && " Correct the settings of the notifier, then send a test."));
}

/** @param {Api.NotifierView} options @param {() => unknown} again */
function testButton({ name }, again) {
  return button("Send a test", async () => {
    const { ok, detail } = await postEmpty(`/v1/notify/${encodeURIComponent(name)}/test`);
    toast(`${name}: ${ok ? "" : "not sent: "}${detail}`, ok ? "good" : "bad");
    await again();
  }, { label: `Send a test with ${name}` });
}
