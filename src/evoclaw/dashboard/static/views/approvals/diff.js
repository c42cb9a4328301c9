// @ts-check
// Unified diffs: made of two texts, and shown in colours.

import { h } from "../../dom.js";

const AROUND = 3; // unchanged lines around a change
const MAX_CELLS = 1_000_000; // of the table that compares lines; above it, all lines change

/** @typedef {[" "|"-"|"+", string]} Line */

/**
 * What turns one text into another, as the lines of a unified diff without file names.
 * @param {string} before
 * @param {string} after
 * @returns {string[]}
 */
export function unifiedDiff(before, after) {
  const lines = compared(before.split("\n"), after.split("\n"));
  const changed = lines.flatMap(([mark], index) => (mark === " " ? [] : [index]));
  /** @type {string[]} */
  const found = [];
  for (let at = 0; at < changed.length;) {
    let last = at;
    while (last + 1 < changed.length && changed[last + 1] - changed[last] <= 2 * AROUND) last += 1;
    const start = Math.max(0, changed[at] - AROUND);
    const end = Math.min(lines.length, changed[last] + AROUND + 1);
    found.push(heading(lines, start, end),
      ...lines.slice(start, end).map(([mark, text]) => mark + text));
    at = last + 1;
  }
  return found;
}

/**
 * @param {Line[]} lines
 * @param {number} start
 * @param {number} end
 */
function heading(lines, start, end) {
  /**
   * @param {string} other the mark of lines that this side lacks
   * @param {number} from
   * @param {number} to
   */
  const count = (other, from, to) =>
    lines.slice(from, to).filter(([mark]) => mark !== other).length;
  const side = (/** @type {string} */ other) => {
    const number = count(other, start, end);
    return `${count(other, 0, start) + (number ? 1 : 0)}${number === 1 ? "" : `,${number}`}`;
  };
  return `@@ -${side("+")} +${side("-")} @@`;
}

/**
 * @param {string[]} left
 * @param {string[]} right
 * @returns {Line[]}
 */
function compared(left, right) {
  let first = 0, last = 0;
  const least = Math.min(left.length, right.length);
  while (first < least && left[first] === right[first]) first += 1;
  while (last < least - first && left.at(-1 - last) === right.at(-1 - last)) last += 1;
  const same = (/** @type {string[]} */ texts) =>
    texts.map((text) => /** @type {Line} */ ([" ", text]));
  return [...same(left.slice(0, first)),
    ...middle(left.slice(first, left.length - last), right.slice(first, right.length - last)),
    ...same(left.slice(left.length - last))];
}

/**
 * The longest common lines stay; the others are removed and added.
 * @param {string[]} left
 * @param {string[]} right
 * @returns {Line[]}
 */
function middle(left, right) {
  const width = right.length + 1;
  if (width * (left.length + 1) > MAX_CELLS) {
    return [...left.map((text) => /** @type {Line} */ (["-", text])),
      ...right.map((text) => /** @type {Line} */ (["+", text]))];
  }
  const common = new Uint32Array(width * (left.length + 1)); // of the lines from here on
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = left[i] === right[j] ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  /** @type {Line[]} */
  const found = [];
  let i = 0, j = 0;
  while (i < left.length || j < right.length) {
    if (i < left.length && j < right.length && left[i] === right[j]) {
      found.push([" ", left[i]]);
      i += 1;
      j += 1;
    } else if (j >= right.length
      || (i < left.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      found.push(["-", left[i]]);
      i += 1;
    } else {
      found.push(["+", right[j]]);
      j += 1;
    }
  }
  return found;
}

/** @type {Record<string, string>} */
const KINDS = { "+": "added", "-": "removed", "@": "hunk" };

/**
 * The lines of a diff, coloured by their first character.
 * @param {string} text
 */
export const diffLines = (text) => h("code", { class: "diff" }, text.split("\n")
  .map((line) => h("span", { class: KINDS[line[0]] || "same" }, line || " ")));
