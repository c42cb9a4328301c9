// @ts-check
// Components that several views share.

import { announce, byId, clean, h, lookup, replace } from "./dom.js";
import { ago, moment } from "./format.js";

const MAX_TEXT_CHARS = 20_000;

const SIGNS = lookup({ good: "●", bad: "✕", warn: "▲", busy: "◐", quiet: "○" });

/**
 * A badge: text with a symbol; `tone`: good, bad, warn, busy, quiet.
 * @param {string} tone @param {Child} text
 */
export function badge(tone, text) {
  return h("span", { class: `badge ${tone}` },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[tone] || "○"), text);
}

const STOPS = lookup({
  completed: ["good", "completed"], waiting: ["warn", "waiting"], cancelled: ["quiet", "cancelled"],
  error: ["bad", "failed"], max_iterations: ["warn", "turn limit"],
  budget_exceeded: ["warn", "budget exceeded"], duration_exceeded: ["warn", "time limit"],
  loop_detected: ["warn", "loop detected"],
});

/**
 * The status of a run.
 * @param {{state: string, stop?: string|null}} run
 */
export function runBadge(run) {
  if (run.state === "running") return badge("busy", "running");
  if (run.state === "queued") return badge("quiet", "queued");
  const [tone, text] = STOPS[run.stop || ""] || ["quiet", run.stop || run.state];
  return badge(tone, text);
}

const VERDICTS = lookup({ allow: "good", deny: "bad", ask: "warn" });

/**
 * The verdict of a policy.
 * @param {string} verdict
 */
export function verdictBadge(verdict) {
  return badge(VERDICTS[verdict] || "quiet", verdict);
}

/**
 * Whether an edge is online or revoked.
 * @param {Api.EdgeView} edge
 */
export function edgeBadge(edge) {
  if (edge.state === "revoked") return badge("bad", "revoked");
  return edge.online ? badge("good", "online") : badge("quiet", "offline");
}

/**
 * A time, with the relative time as a tooltip.
 * @param {number|null} [unix]
 */
export function when(unix) {
  const date = new Date((unix || 0) * 1000);
  if (!unix || isNaN(date.getTime())) return h("span", null, "–"); // a device may send any number
  const iso = date.toISOString();
  return h("time", { datetime: iso, title: `${iso} (${ago(unix)})` }, moment(unix));
}

/**
 * A button; `press` may be async: further clicks are ignored meanwhile, and errors are shown.
 * @param {Child} text @param {(pressed: HTMLElement) => unknown} press
 * @param {{tone?: string, title?: string, label?: string}} [options]
 */
export function button(text, press, { tone = "", title, label } = {}) {
  const made = h("button", { type: "button", class: tone, title, "aria-label": label }, text);
  made.addEventListener("click", () => busy(made, press));
  return made;
}

/**
 * Run the work of a button; further clicks are ignored until it is done.
 * @param {HTMLElement} pressed @param {(pressed: HTMLElement) => unknown} work
 */
export async function busy(pressed, work) {
  if (pressed.getAttribute("aria-busy") === "true") return;
  pressed.setAttribute("aria-busy", "true");
  try {
    await work(pressed);
  } catch (cause) {
    if (cause.name !== "AbortError") toast(cause.message, "bad");
  } finally {
    pressed.removeAttribute("aria-busy");
  }
}

/**
 * Show a message for a few seconds, and announce it to screen readers.
 * @param {string} text
 */
export function toast(text, tone = "quiet") {
  const note = h("div", { class: `toast ${tone}` }, text);
  byId("toasts").append(note);
  announce(text);
  setTimeout(() => note.remove(), 6000);
}

/**
 * The empty state of a view, with what to do next.
 * @param {string} text @param {...Child} more
 */
export function empty(text, ...more) {
  return h("div", { class: "empty" }, h("p", null, text), more);
}

/**
 * What is shown where the token lacks a scope.
 * @param {string} action @param {string} scope
 */
export const missingScope = (action, scope) => empty(`You cannot ${action}: your token lacks the `
  + `scope '${scope}'. Ask an administrator for a token that has it.`);

/**
 * An error in place of the content, with a retry button.
 * @param {{message: string}} cause @param {(() => unknown)|null} [again]
 */
export function failed(cause, again) {
  return h("div", { class: "empty bad", role: "alert" }, h("p", null, cause.message),
    again && button("Try again", again));
}

/**
 * Fill an element with the result of a promise, or with its error.
 * @template Found
 * @param {HTMLElement} place @param {() => Promise<Found>} work
 * @param {(found: Found) => Child} show @param {AbortSignal} [signal]
 */
export async function load(place, work, show, signal) {
  place.setAttribute("aria-busy", "true");
  try {
    const found = await work();
    if (!signal?.aborted) replace(place, show(found));
  } catch (cause) {
    if (cause.name !== "AbortError" && !signal?.aborted) {
      replace(place, failed(cause, () => load(place, work, show, signal)));
    }
  } finally {
    place.removeAttribute("aria-busy");
  }
}

/**
 * A monospaced text; a very long one is cut, with a button to show all.
 * @param {unknown} text
 */
export function textBlock(text, label = "output") {
  const full = clean(text);
  const place = h("pre", { class: "text", tabindex: "0", role: "region", "aria-label": label });
  if (full.length <= MAX_TEXT_CHARS) return replace(place, full);
  const all = button(`Show all ${full.length.toLocaleString()} characters`, () => {
    replace(place, full);
    all.remove();
  });
  return h("div", null, replace(place, full.slice(0, MAX_TEXT_CHARS), "…"), all);
}

/**
 * A value as JSON.
 * @param {unknown} value
 */
export const jsonBlock = (value, label = "JSON") =>
  textBlock(JSON.stringify(value, null, 2), label);

/**
 * A collapsible section; `fill` creates its content when it is first opened.
 * @param {Child} summary @param {() => Child} fill
 */
export function fold(summary, fill, open = false) {
  const body = h("div", { class: "folded" });
  const made = h("details", { open }, h("summary", null, summary), body);
  const show = () => { if (made.open && !body.firstChild) replace(body, fill()); };
  made.addEventListener("toggle", show);
  if (open) replace(body, fill());
  return made;
}

/**
 * A labelled field.
 * @param {string} label @param {Child} input @param {Child} [hint]
 */
export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", null, label), input,
    hint && h("small", null, hint));
}

/**
 * A choice from a list of values, or of [value, text].
 * @param {(string|string[])[]} options @param {string} [value]
 * @param {(value: string) => unknown} [change]
 */
export function select(options, value, change) {
  const pairs = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const made = h("select", { on: { change: () => change?.(made.value) } },
    pairs.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return made;
}

/**
 * A table. On a phone each row is a card with the main column as its heading.
 * @template Row
 * @param {string} caption @param {Column<Row>[]} columns @param {Row[]} rows
 */
export function table(caption, columns, rows) {
  const head = columns.map((one) =>
    h("th", { scope: "col", class: one.number && "number" }, one.title));
  /** @param {Column<Row>} one */
  const kind = (one) => [one.number && "number", one.main && "main", one.wide && "wide"]
    .filter(Boolean).join(" ");
  const body = rows.map((row) => h("tr", null, columns.map((one) =>
    h("td", { class: kind(one) || null, data: { title: one.title } }, one.cell(row)))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null, h("caption", { class: "unseen" }, caption),
      h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

/**
 * Ask for confirmation; resolves to the text of the field `ask`, or null if cancelled.
 * @param {string} title @param {string} text
 * @param {{action?: string, ask?: string, tone?: string}} [options] @returns {Promise<string|null>}
 */
export function confirmed(title, text, { action = "Continue", ask, tone = "danger" } = {}) {
  return new Promise((resolve) => {
    const input = ask && h("textarea", { rows: "3", maxlength: "2000" });
    /** @param {string|null} value */
    const close = (value) => { dialog.close(); dialog.remove(); resolve(value); };
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
      h("h2", { id: "dialog-title" }, title), h("p", null, text), input && field(ask, input),
      h("div", { class: "row end" },
        button("Cancel", () => close(null)),
        button(action, () => close(input ? input.value : ""), { tone })));
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); close(null); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * A dialog that shows something until it is closed.
 * @param {string} title @param {...Child} content
 */
export function dialog(title, ...content) {
  /** @type {HTMLDialogElement} */
  const made = h("dialog", { "aria-labelledby": "dialog-title" },
    h("header", { class: "row between" }, h("h2", { id: "dialog-title" }, title),
      button("Close", () => made.close())), content);
  made.addEventListener("close", () => made.remove());
  document.body.append(made);
  made.showModal();
  return made;
}

/**
 * A button that copies a text.
 * @param {string} text
 */
export function copyButton(text, label = "Copy") {
  return button(label, async () => {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied");
    } catch { // browsers allow the clipboard only in secure contexts
      const place = textBlock(text, "text to copy");
      dialog("Copy this text", place);
      getSelection()?.selectAllChildren(place);
    }
  });
}

/**
 * Names with their values; those without one are left out.
 * @param {Child[][]} pairs
 */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

/**
 * A number with its name below.
 * @param {string} name @param {Child} value @param {string} [title]
 */
export function figure(name, value, title) {
  return h("div", { class: "figure", title }, h("strong", null, value), h("span", null, name));
}
