// @ts-check
// The arguments of a call as they would be sent: nothing hidden, nothing left out unsaid.

import { h, replace } from "../../dom.js";
import { badge, button } from "../../components.js";

const MAX_LINES = 14, MAX_CHARS = 900; // of one argument that are shown before it is truncated
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;
const REMOVED = /\[… (\d+) characters not shown …\]/g;

/** @param {string} letter */
const code = (letter) =>
  `⟨U+${(letter.codePointAt(0) || 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

/**
 * A text with invisible and reordering characters written out.
 * @param {*} text
 * @returns {string}
 */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => (c === "\n" || c === "\t" ? c : code(c)));
}

/**
 * A text in a block, with notes about truncated or removed parts.
 * @param {string} label
 * @param {string} raw the text as it came
 * @param {object} [options]
 * @param {(shown: string) => *} [options.draw] makes nodes of a part of the visible text
 * @param {number} [options.lines] that are shown at first
 * @param {number} [options.chars] that are shown at first
 * @param {string} [options.text] what to show, if it is not the text itself
 */
export function block(label, raw, options = {}) {
  const { draw = (shown) => shown, lines = MAX_LINES, chars = MAX_CHARS } = options;
  const text = options.text ?? visible(raw);
  const removed = [...raw.matchAll(REMOVED)].reduce((sum, found) => sum + Number(found[1]), 0);
  const place = h("pre", { class: "text", tabindex: "0", role: "group", "aria-label": label });
  const notes = h("div", { class: "row small" });
  const short = text.split("\n").slice(0, lines).join("\n").slice(0, chars);
  replace(place, text === "" ? h("span", { class: "soft" }, "(empty)") : draw(short));
  if (short.length < text.length) {
    const rest = (text.length - short.length).toLocaleString();
    const all = button(`Show the other ${rest} of ${text.length.toLocaleString()} characters`,
      () => { replace(place, draw(text)); all.remove(); folded.remove(); place.focus(); });
    const folded = badge("warn", "truncated: not all of it is shown");
    place.append("…");
    notes.append(folded, all);
  }
  if (removed) {
    notes.append(badge("warn", `${removed.toLocaleString()} characters were removed before this `
      + "was stored; the sha256 covers them too"));
  }
  if (visible(raw) !== raw) {
    notes.append(badge("warn", "hidden characters are written out as ⟨U+…⟩"));
  }
  return [place, notes];
}

/**
 * The arguments of a call.
 * @param {Record<string, *>|null} [values]
 */
export function argumentList(values) {
  const pairs = Object.entries(values || {});
  if (!pairs.length) return h("p", { class: "soft" }, "No arguments.");
  return h("dl", { class: "arguments" }, pairs.map(([name, value]) => {
    const raw = typeof value === "string" ? value : JSON.stringify(value, null, 2);
    return [h("dt", null, h("code", null, visible(name))),
      h("dd", null, block(`argument ${name}`, raw))];
  }));
}
