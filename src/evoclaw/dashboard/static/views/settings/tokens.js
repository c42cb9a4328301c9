// @ts-check
// API tokens: create, list and revoke.

import { del, get, post } from "../../api.js";
import { h, replace } from "../../dom.js";
import { ago } from "../../format.js";
import { may, me } from "../../live.js";
import { badge, button, confirmed, copyButton, empty, field, load, missingScope, select, table,
  toast, when } from "../../components.js";
import { SCOPES, meaningOf } from "./scopes.js";

/** @type {{[name: string]: [string, string[]]}} */
const PRESETS = {
  look: ["Read-only access", SCOPES.filter((one) => one.endsWith(":read"))],
  person: ["A person at the dashboard", [...SCOPES.filter((one) => one.includes(":")), "human"]],
  program: ["A program that invokes agents", ["agents:invoke", "runs:read", "runs:write",
    "sessions:read", "sessions:write"]],
};
const DAY = 86_400;
const EXPIRIES = [[String(DAY / 24), "1 hour"], [String(DAY), "1 day"], [String(7 * DAY), "7 days"],
  [String(30 * DAY), "30 days"], [String(365 * DAY), "1 year"], ["", "never"]];

/**
 * Show the tokens, and the form to create one.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showTokens(place, signal) {
  if (!may("admin")) {
    return replace(place, missingScope("create tokens", "admin"));
  }
  const list = h("div"), made = h("div", { "aria-live": "polite" });
  const again = () => load(list, () => get("/v1/tokens", null, { signal }),
    ({ items }) => tokensShown(items, again), signal);
  replace(place, made, form(made, again), h("h2", null, "Tokens"), list);
  return again();
}

/** @param {HTMLElement} made @param {() => unknown} again */
function form(made, again) {
  const name = h("input", { required: true, maxlength: "200", autocomplete: "off" });
  const user = h("input", { maxlength: "128", autocomplete: "off" });
  const expiry = select(EXPIRIES, String(30 * DAY));
  const boxes = SCOPES.map((scope) => h("input", { type: "checkbox", value: scope,
    disabled: !holds(scope) }));
  /** @param {string[]} scopes */
  const choose = (scopes) => {
    for (const box of boxes) box.checked = !box.disabled && scopes.includes(box.value);
  };
  const presets = Object.values(PRESETS).map(([text, scopes]) =>
    button(text, () => choose(scopes)));
  const make = h("button", { class: "primary" }, "Create token");
  const element = h("form", { class: "card settings-make" }, h("h2", null, "Create a token"),
    h("div", { class: "settings-form" }, field("Name of the token", name, "What it is for"),
      field("User", user, "Optional: the user on whose behalf it acts"), field("Expires", expiry)),
    h("fieldset", null, h("legend", null, "Scopes"),
      h("div", { class: "row small" }, "Presets:", presets),
      h("div", { class: "scopes" }, boxes.map((box) => scopeBox(box)))),
    h("div", { class: "row" }, make));
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    const scopes = boxes.filter((box) => box.checked).map((box) => box.value);
    if (!scopes.length) return toast("Choose at least one scope.", "bad");
    make.disabled = true;
    try {
      const expires_in = expiry.value ? Number(expiry.value) : null;
      const body = { name: name.value.trim(), user: user.value.trim(), scopes, expires_in };
      secretShown(made, body.name, await post("/v1/tokens", body));
      element.reset();
      expiry.value = String(30 * DAY);
      await again();
    } catch (cause) {
      toast(cause.message, "bad");
    }
    make.disabled = false;
    return null;
  });
  return element;
}

/**
 * Whether the user holds a scope, and so may grant it.
 * @param {string} scope
 */
function holds(scope) {
  return scope === "*" ? me().scopes.includes("*") : may(scope);
}

/** @param {HTMLInputElement} box */
function scopeBox(box) {
  const why = box.disabled ? "A token can only grant scopes that it has" : null;
  return h("label", { class: "check small", title: why }, box,
    h("span", null, h("code", null, box.value), " ",
      h("span", { class: "soft" }, meaningOf(box.value),
        box.disabled && " (your token lacks it)")));
}

/** @param {HTMLElement} place @param {string} name @param {Api.CreatedToken} options */
function secretShown(place, name, { token }) {
  const secret = h("input", { readonly: true, value: token, class: "mono",
    "aria-label": "The new token", on: { focus: () => secret.select() } });
  replace(place, h("section", { class: "card secret" },
    h("h2", null, `The token “${name}”`),
    h("p", null, badge("warn", "shown once"), " Copy it now: it is not stored and cannot be shown "
      + "again."),
    h("div", { class: "row" }, h("div", { class: "grow" }, secret), copyButton(token),
      button("Done", () => replace(place)))));
  secret.focus();
}

/** @param {Api.TokenView} token */
function stateOf(token) {
  if (token.revoked_at) return badge("bad", "revoked");
  if (token.expires_at && token.expires_at < Date.now() / 1000) return badge("quiet", "expired");
  return badge("good", "valid");
}

/** @param {Api.TokenView[]} items @param {() => unknown} again */
function tokensShown(items, again) {
  if (!items.length) return empty("No tokens yet, except those in the configuration.");
  /** @type {Column<Api.TokenView>[]} */
  const columns = [
    { title: "Name", main: true, cell: (row) => [row.name, row.id === me().token
      && h("span", { class: "soft small" }, " (yours)")] },
    { title: "State", cell: stateOf },
    { title: "Scopes", wide: true, cell: (row) => h("code", null, row.scopes.join(" ")) },
    { title: "User", cell: (row) => row.user || "–" },
    { title: "Created", cell: (row) => when(row.made_at) },
    { title: "Expires", cell: (row) => (row.expires_at ? when(row.expires_at) : "never") },
    { title: "Last used", cell: (row) => ago(row.used_at) },
    { title: "", cell: (row) => !row.revoked_at && button("Revoke…", () => revoke(row, again),
      { tone: "danger", label: `Revoke the token ${row.name}` }) },
  ];
  return table("tokens, the newest first", columns, items);
}

/** @param {Api.TokenView} token @param {() => unknown} again */
async function revoke(token, again) {
  const text = token.id === me().token
    ? "This is the token that you use now: you will be logged out."
    : "It stops working immediately. This cannot be undone.";
  if (await confirmed(`Revoke the token “${token.name}”?`, text, { action: "Revoke" }) === null) {
    return;
  }
  await del(`/v1/tokens/${encodeURIComponent(token.id)}`);
  toast(`Revoked the token “${token.name}”`);
  await again();
}
