// @ts-check
// A line diff of two values.

const AROUND = 2; // unchanged context lines around a change

/**
 * Both values in pieces: ["same" or "changed", text].
 * @param {unknown} a @param {unknown} b
 */
export function changed(a, b) {
  const [left, right] = [a, b].map((one) => written(one).split("\n"));
  let first = 0, last = 0;
  const least = Math.min(left.length, right.length);
  while (first < least && left[first] === right[first]) first += 1;
  while (last < least - first && left.at(-1 - last) === right.at(-1 - last)) last += 1;
  return [left, right].map((lines) => pieces(lines, first, last));
}

/** @param {string[]} lines @param {number} first @param {number} last @returns {string[][]} */
function pieces(lines, first, last) {
  const before = lines.slice(0, first), middle = lines.slice(first, lines.length - last);
  const after = lines.slice(lines.length - last);
  const found = [];
  if (before.length) {
    found.push(["same", cut(before.slice(-AROUND), before.length > AROUND, true) + "\n"]);
  }
  found.push(["changed", middle.length ? middle.join("\n") : "(nothing)"]);
  if (after.length) {
    found.push(["same", "\n" + cut(after.slice(0, AROUND), after.length > AROUND, false)]);
  }
  return found;
}

/** @param {string[]} lines @param {boolean} more @param {boolean} atFront */
function cut(lines, more, atFront) {
  const text = lines.join("\n");
  if (!more) return text;
  return atFront ? `…\n${text}` : `${text}\n…`;
}

/**
 * A value as people read it: texts as they are, the rest as JSON.
 * @param {unknown} value
 */
export function written(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.every((one) => typeof one === "string")) {
    return value.length ? value.join("\n\n") : "none";
  }
  return JSON.stringify(value, null, 2);
}
