// @ts-check
// Notifications: the notifiers of the service, a test message, and this device.

import { get, postEmpty } from "../../api.js";
import { h, lookup, replace } from "../../dom.js";
import { may } from "../../live.js";
import { badge, button, empty, load, missingScope, table, toast } from "../../components.js";

const TONES = lookup({ sent: "good", due: "warn", dead: "bad" });
const STATES = lookup({ sent: "sent", due: "retrying", dead: "failed" });

/**
 * Show the notifiers, and the way to add this device.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showNotifications(place, signal) {
  const device = may("approvals:read") && h("section", { class: "card settings-make" },
    h("h2", null, "This device"),
    h("p", null, "A browser can tell you that something waits for you, also when the dashboard is "
      + "closed."),
    h("p", null, h("a", { href: "/ui/push.html" }, "Notify me on this device")));
  const list = h("div");
  replace(place, device, h("h2", null, "Notifiers"), list);
  if (!may("admin")) {
    return replace(list, missingScope("see notifiers", "admin"));
  }
  const again = () => load(list, () => get("/v1/notify", null, { signal }), ({ items }) =>
    (items.length ? notifiersShown(items, again)
      : empty("None is configured: add a [[notify]] table to evoclaw.toml.")), signal);
  return again();
}

/** @param {Api.NotifierView[]} items @param {() => unknown} again */
function notifiersShown(items, again) {
  return table("Notifiers", [
    { title: "Name", cell: (one) => h("strong", null, one.name) },
    { title: "Kind", cell: (one) => one.kind },
    { title: "Reports", cell: (one) => one.on.join(", ") },
    { title: "Answers", cell: (one) => (one.answers ? "approve and deny" : "no") },
    { title: "Last message", cell: lastShown },
    { title: "Test", cell: (one) => testButton(one, again) },
  ], items);
}

/** @param {Api.NotifierView} options */
function lastShown({ last_state: state, last_problem: problem }) {
  if (!state) return "none yet";
  return h("span", null, badge(TONES[state] || "quiet", STATES[state] || state),
    problem && h("span", { class: "soft small" }, ` ${problem}`));
}

/** @param {Api.NotifierView} options @param {() => unknown} again */
function testButton({ name }, again) {
  return button("Send a test message", async () => {
    const { ok, detail } = await postEmpty(`/v1/notify/${encodeURIComponent(name)}/test`);
    toast(`${name}: ${ok ? "" : "not sent: "}${detail}`, ok ? "good" : "bad");
    await again();
  }, { label: `Send a test message with ${name}` });
}
