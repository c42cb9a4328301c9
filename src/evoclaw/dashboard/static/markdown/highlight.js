// @ts-check
// Colours code: splits it into words, strings, comments and numbers, in linear time.

import { h } from "../dom.js";
import { languageOf } from "./languages.js";

/** @typedef {import("./languages.js").Language} Language */

const MAX_CHARS = 50_000; // longer code has no colours

/**
 * Code as texts and coloured elements.
 * @param {string} code
 * @param {string} name the name of its language
 * @returns {(Node|string)[]}
 */
export function highlighted(code, name) {
  const language = languageOf(name);
  if (!language || code.length > MAX_CHARS) return [code];
  /** @type {(Node|string)[]} */
  const parts = [];
  let plain = "";
  for (const [kind, text] of piecesOf(code, language)) {
    if (!kind) {
      plain += text;
      continue;
    }
    if (plain) parts.push(plain);
    plain = "";
    parts.push(h("span", { class: `hl-${kind}` }, text));
  }
  if (plain) parts.push(plain);
  return parts;
}

/**
 * The pieces of code, in order: what they are, empty for plain text, and their text.
 * @param {string} code
 * @param {Language} language
 * @returns {Generator<[string, string]>}
 */
export function* piecesOf(code, language) {
  let end = 0;
  for (const found of code.matchAll(language.pattern)) {
    const [text] = found, { index } = found;
    if (index > end) yield ["", code.slice(end, index)];
    end = index + text.length;
    const kind = Object.entries(found.groups || {}).find(([, value]) => value !== undefined)?.[0];
    yield [kind === "word" || kind === "string" ? kindOf(text, kind, code, end, language)
      : kind || "", text];
  }
  if (end < code.length) yield ["", code.slice(end)];
}

/**
 * What a word or a string is, by itself and by what follows.
 * @param {string} text
 * @param {string} kind
 * @param {string} code
 * @param {number} end
 * @param {Language} language
 */
function kindOf(text, kind, code, end, language) {
  const { keywords, constants, key, ignoresCase } = language;
  const next = code[end] === " " ? code[end + 1] : code[end];
  if (key && next === key) return "property";
  if (kind === "string") return "string";
  const word = ignoresCase ? text.toLowerCase() : text;
  if (keywords.has(word)) return "keyword";
  if (constants.has(word)) return "number";
  return code[end] === "(" || (language.macros && code[end] === "!") ? "function" : "";
}
