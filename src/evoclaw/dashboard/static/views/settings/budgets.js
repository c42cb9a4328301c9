// @ts-check
// Budgets: spent, reserved and remaining amounts of each account.

import { get } from "../../api.js";
import { h, lookup, replace } from "../../dom.js";
import { bytes, count, duration, money, percent } from "../../format.js";
import { may } from "../../live.js";
import { badge, button, empty, load, missingScope } from "../../components.js";

/** @type {{[kind: string]: ((value: number|null) => string)|undefined}} */
const FORMATS = lookup({ dollars: money, seconds: duration,
  bytes: (/** @type {number|null} */ value) => bytes(value || 0) });
const ORDER = ["dollars", "tokens", "calls", "turns", "seconds", "files", "lines", "bytes"];

/**
 * Show the accounts.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showBudgets(place, signal) {
  if (!may("budgets:read")) {
    return replace(place, missingScope("see budgets", "budgets:read"));
  }
  const list = h("div", { class: "accounts" });
  const closed = h("input", { type: "checkbox", on: { change: () => again() } });
  const again = () => load(list, () => get("/v1/budgets",
    { closed: closed.checked ? "true" : "" }, { signal }), ({ items }) => (items.length
    ? items.map(account) : empty("Nothing has been spent yet.")), signal);
  replace(place, h("div", { class: "row between" },
    h("label", { class: "check small" }, closed, "Include closed accounts"),
    button("Refresh", again)), list);
  return again();
}

/**
 * An account's name as words: `tenant:local/agent:careful`.
 * @param {string} text
 */
function nameOf(text) {
  return text.split("/").map((part) => {
    const [kind, ...name] = part.split(":");
    return `${kind} ${decode(name.join(":"))}`;
  }).join(" › ");
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // as it is
  }
}

/** @param {string} kind */
const rank = (kind) => (ORDER.includes(kind) ? ORDER.indexOf(kind) : ORDER.length);

/** @param {Api.AccountView} one */
function account(one) {
  const kinds = Object.entries(one.kinds)
    .sort(([a], [b]) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const bounded = kinds.filter(([, found]) => found.limit !== null);
  const free = kinds.filter(([, found]) => found.limit === null);
  return h("section", { class: "card account" },
    h("h2", null, nameOf(one.account), " ", one.closed && badge("quiet", "closed")),
    bounded.map(([kind, found]) => bounds(kind, found)),
    free.length > 0 && h("div", { class: "free" },
      h("h3", { class: "soft" }, bounded.length ? "No limit" : "No limits"),
      h("dl", null, free.map(([kind, { spent, reserved }]) => {
        const format = FORMATS[kind] || count;
        return h("div", null, h("dt", null, kind), h("dd", null, format(spent),
          reserved > 0 && h("span", { class: "soft small" }, ` + ${format(reserved)} reserved`)));
      }))));
}

/** @param {string} kind @param {Api.SpendingView} options */
function bounds(kind, { spent, reserved, limit, per_seconds: per, left }) {
  const format = FORMATS[kind] || count;
  /** @param {number} value */
  const share = (value) => `${Math.min(100, (100 * value) / (limit || 1))}%`;
  const used = limit ? (spent + reserved) / limit : 1;
  const tone = used >= 1 ? "bad" : used >= 0.8 ? "warn" : "good";
  return h("div", { class: "bound" },
    h("div", { class: "row between" },
      h("strong", null, kind, per && h("span", { class: "soft small" }, ` per ${duration(per)}`)),
      badge(tone, `${format(left)} left of ${format(limit)}`)),
    h("div", { class: "gauge", role: "img",
      "aria-label": `${kind}: ${percent(used)} of the limit` },
      h("span", { class: `spent ${tone}`, style: { width: share(spent) } }),
      h("span", { class: "held", style: { width: share(reserved) } })),
    h("p", { class: "soft small" },
      `${format(spent)} spent, ${format(reserved)} reserved for current runs`));
}
