// @ts-check
// Settings: pairing, channels, notifications, tokens, budgets, policies and the emergency stop.

import { get } from "../../api.js";
import { h, replace } from "../../dom.js";
import { may, me } from "../../live.js";
import { badge, load } from "../../components.js";
import { showFirstSteps } from "../../first_steps.js";
import { showBudgets } from "./budgets.js";
import { showChannels } from "./channels.js";
import { showNotifications } from "./notifications.js";
import { showPair } from "./pair.js";
import { showPolicy } from "./policy.js";
import { meaningOf } from "./scopes.js";
import { showStops, stopBar } from "./stops.js";
import { showTokens } from "./tokens.js";

export const title = "Settings";

/** @type {{[name: string]: [string, (place: HTMLElement, signal: AbortSignal) => unknown]}} */
const SECTIONS = {
  pair: ["Pair a device", showPair],
  channels: ["Channels", showChannels],
  notifications: ["Notifications", showNotifications],
  tokens: ["Tokens", showTokens],
  budgets: ["Budgets", showBudgets],
  policy: ["Policies", showPolicy],
  stops: ["Emergency stop", showStops],
  start: ["First steps", showFirstSteps],
  about: ["About", showAbout],
};

/**
 * Show a section (`#/settings/NAME`) below the emergency stop.
 * @param {HTMLElement} root @param {string[]} options @param {AbortSignal} signal
 */
export async function mount(root, [wanted], signal) {
  const name = Object.hasOwn(SECTIONS, wanted || "") ? wanted : "pair";
  const [text, show] = SECTIONS[name];
  const body = h("section", { class: "settings-body", "aria-label": text });
  const links = Object.entries(SECTIONS).map(([section, [label]]) => h("a", {
    href: `#/settings/${section}`, "aria-current": section === name ? "page" : null }, label));
  const tabs = h("nav", { class: "tabs", "aria-label": "Settings" }, links);
  replace(root, tabs, name !== "stops" && may("admin") && stopBar(signal), body);
  tabs.querySelector("[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  await show(body, signal);
}

/** @param {HTMLElement} place @param {AbortSignal} signal */
function showAbout(place, signal) {
  const { token, user, tenant, scopes } = me(), health = h("div");
  replace(place, h("div", { class: "settings-columns" },
    h("section", { class: "card" }, h("h2", null, "Your identity"),
      h("dl", { class: "facts" },
        h("dt", null, "token"), h("dd", null, h("code", null, token)),
        h("dt", null, "user"), h("dd", null, user || "(none named)"),
        h("dt", null, "tenant"), h("dd", null, tenant)),
      h("h3", null, "Your scopes"),
      h("ul", { class: "scopes-held" }, scopes.map((scope) => h("li", null,
        h("code", null, scope), " ", h("span", { class: "soft" }, meaningOf(scope)))))),
    h("section", { class: "card" }, h("h2", null, "Status of the orchestrator"), health,
      h("h3", null, "The HTTP API"),
      h("ul", null,
        h("li", null, h("a", { href: "/docs" }, "/docs"), " for people"),
        h("li", null, h("a", { href: "/openapi.json" }, "/openapi.json"), " for programs")))));
  return load(health, () => healthOf(signal), healthShown, signal);
}

/**
 * The readiness; a failed readiness check is a valid answer too.
 * @param {AbortSignal} signal
 */
async function healthOf(signal) {
  const live = await get("/health/live", null, { signal });
  const response = await fetch("/health/ready", { signal });
  return { version: live.version, ...await response.json() };
}

/** @param {Api.Readiness & {version: string}} options */
function healthShown({ version, ready, parts }) {
  return h("div", null,
    h("p", null, ready ? badge("good", "ready") : badge("bad", "not ready"), ` EvoClaw ${version}`),
    h("ul", { class: "parts" }, Object.entries(parts || {}).map(([name, state]) => h("li", null,
      badge(state === "ok" ? "good" : "bad", `${name}: ${state}`)))));
}
