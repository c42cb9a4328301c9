// @ts-check
// Text files in a message: the API takes pictures and text, so a file is a marked part of the text.

import { bytes } from "../../format.js";

/** @typedef {{ name: string, text: string }} TextFile */

const MAX_FILE_BYTES = 100_000;
const MARK = "\n\nAttached file: ";

/**
 * The text of a file; throws a sentence for people if it cannot be sent.
 * @param {File} file
 * @returns {Promise<TextFile>}
 */
export async function readText(file) {
  if (file.size > MAX_FILE_BYTES) {
    throw new Error(`“${file.name}” is too large (${bytes(file.size)}); a text file can have `
      + `${bytes(MAX_FILE_BYTES)}. Copy it to a machine, and write its path instead.`);
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error("binary");
    const name = file.name.replace(/\s+/g, " ").trim() || "text";
    return { name, text: text.replace(/\r\n/g, "\n").replace(/\n$/, "") };
  } catch {
    throw new Error(`“${file.name}” is neither a picture nor a text file. `
      + "Copy it to a machine, and write its path instead.");
  }
}

/**
 * A message with the files below it.
 * @param {string} message
 * @param {TextFile[]} files
 */
export function withFiles(message, files) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(3, ...[...text.matchAll(/~+/g)].map(([run]) => run.length));
    const mark = "~".repeat(longest + 1);
    return `${MARK}${name}\n${mark}\n${text}\n${mark}`;
  });
  return [message, ...parts].join("").trim();
}

/**
 * What a person typed, and the files below it.
 * @param {string} message
 * @returns {{ words: string, files: TextFile[] }}
 */
export function splitFiles(message) {
  const [words, ...parts] = `\n\n${message}`.split(MARK);
  const files = parts.map(fileOf);
  // A text that only looks like this is shown as it is.
  if (!files.length || files.includes(null)) return { words: message, files: [] };
  return { words: words.trim(), files: files.filter((file) => file !== null) };
}

/**
 * @param {string} part
 * @returns {TextFile|null}
 */
function fileOf(part) {
  const [name, mark] = part.split("\n", 2), start = `${name}\n${mark}\n`, end = `\n${mark}`;
  const whole = /^~{4,}$/.test(mark || "") && part.endsWith(end)
    && part.length >= start.length + end.length;
  return whole ? { name, text: part.slice(start.length, -end.length) } : null;
}
