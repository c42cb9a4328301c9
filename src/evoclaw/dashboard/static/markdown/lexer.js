// @ts-check
// Splits Markdown into the tokens of the vendored lexer. HTML in the text stays text.

import MarkdownIt from "../vendor/markdown-it.js";
import { isOutside } from "./links.js";

/**
 * A token of markdown-it.
 * @typedef {object} Token
 * @property {string} type
 * @property {string} tag
 * @property {1|0|-1} nesting opens, stands alone, or closes
 * @property {string} content
 * @property {string} info the words after the fence of a code block
 * @property {boolean} hidden a paragraph of a tight list
 * @property {Token[]|null} children the parts of a line
 * @property {[number, number]|null} map the first line, and the line after the last
 * @property {(name: string) => string|null} attrGet
 */
/**
 * A block of the text that is in no other.
 * @typedef {{ tokens: Token[], line: number }} Block
 */

const MAX_DEPTH = 20; // quotes and lists in each other; what is deeper is a paragraph
const MAX_INLINE_CHARS = 8000; // a longer line, or a longer paragraph, is shown as plain text

const lexer = MarkdownIt({ html: false, linkify: true, breaks: true });
lexer.validateLink = isOutside;
lexer.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false })
  .add("ftp:", null).add("//", null);

lexer.core.ruler.at("inline", (/** @type {any} */ state) => {
  for (const token of state.tokens) {
    if (token.type !== "inline") continue;
    if (token.content.length <= MAX_INLINE_CHARS) {
      state.md.inline.parse(token.content, state.md, state.env, token.children);
    } else {
      token.children.push(Object.assign(new state.Token("plain", "", 0),
        { content: token.content }));
    }
  }
});

// What is nested too deep would be left out by the lexer, and a long line may be a costly table.
lexer.block.ruler.before("table", "plain", (/** @type {any} */ state, /** @type {number} */ line,
  /** @type {number} */ end, /** @type {boolean} */ silent) => {
  const deep = state.level >= MAX_DEPTH;
  const long = state.eMarks[line] - state.bMarks[line] > MAX_INLINE_CHARS;
  if (silent || !(deep || long)) return false;
  state.line = deep ? end : line + 1;
  const map = [line, state.line];
  state.push("paragraph_open", "p", 1).map = map;
  Object.assign(state.push("inline", "", 0), { map, children: [],
    content: state.getLines(line, state.line, state.blkIndent, false).trim() });
  state.push("paragraph_close", "p", -1);
  return true;
});

/**
 * The blocks of a text. `references` collects the addresses that the text defines for its links.
 * @param {string} text
 * @param {object} references
 * @returns {Block[]}
 */
export function blocksOf(text, references) {
  /** @type {Token[]} */
  const tokens = lexer.parse(text, references);
  /** @type {Block[]} */
  const blocks = [];
  let depth = 0, start = 0;
  tokens.forEach((token, index) => {
    depth += token.nesting;
    if (depth > 0) return;
    blocks.push({ tokens: tokens.slice(start, index + 1), line: tokens[start].map?.[0] ?? 0 });
    start = index + 1;
  });
  return blocks;
}
