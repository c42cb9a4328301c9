// @ts-check
// Shows Markdown as elements, whole or as it is written: only the last block is drawn again.

import { clean, h } from "../dom.js";
import { codeBlock } from "./code.js";
import { blocksOf } from "./lexer.js";
import { elementsOf } from "./render.js";

/** @typedef {import("./lexer.js").Block} Block */

const MAX_EAGER_CHARS = 4000; // a longer last block is drawn again when it grew by an eighth
const MAX_TEXT_CHARS = 500_000; // a longer text is shown as it is

/** Shows a text in a place, piece by piece. */
export class Writer {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    this.all = "";
    this.open = ""; // the text of the last block, which may still change
    this.drawn = 0; // characters of it that are shown as Markdown
    /** @type {{ references?: object }} */
    this.references = {};
    /** @type {Element[]} */
    this.last = []; // the elements of the last block
    /** @type {ReturnType<typeof codeBlock>|null} */
    this.code = null; // the last block, if it is one of code
    this.rest = h("span", { class: "plain-text" }); // what is not drawn yet
    /** @type {HTMLElement|null} */
    this.plain = null; // shows a text that is too long
  }

  /**
   * Add a piece of text.
   * @param {string} text
   */
  write(text) {
    this.all += text;
    this.open += text;
    if (this.all.length > MAX_TEXT_CHARS) return this.showPlain(text);
    const grown = this.open.length - this.drawn;
    if (this.open.length > MAX_EAGER_CHARS && grown < this.open.length / 8) {
      this.rest.textContent = clean(this.open.slice(this.drawn));
      if (!this.rest.parentNode) (this.code?.code || this.place).append(this.rest);
      return undefined;
    }
    return this.draw(false);
  }

  /** There is no more. */
  end() {
    if (this.all.length > MAX_TEXT_CHARS) return;
    // An address may be defined after the link that uses it.
    if (Object.keys(this.references.references || {}).length) {
      this.open = this.all;
      this.last = [...this.place.children];
    }
    this.draw(true);
    this.open = "";
    this.drawn = 0;
    this.last = [];
    this.code = null;
  }

  /** @param {boolean} ended */
  draw(ended) {
    this.rest.remove();
    this.drawn = this.open.length;
    const lines = this.open.split("\n");
    // Each line for itself: an escape sequence without an end must not hide what follows.
    const blocks = blocksOf(lines.map(clean).join("\n"), this.references);
    const last = ended ? undefined : blocks.pop();
    if (blocks.length) {
      this.clearLast();
      this.place.append(...blocks.flatMap((block) => elementsOf(block.tokens)));
      this.open = last ? lines.slice(last.line).join("\n") : "";
      this.drawn = this.open.length;
    }
    if (last) this.drawLast(last);
  }

  /** @param {Block} block */
  drawLast({ tokens }) {
    const [token] = tokens, isCode = token.type === "fence";
    if (isCode && this.code?.info === token.info) {
      this.code.show(token.content, false);
      return;
    }
    this.clearLast();
    this.code = isCode ? codeBlock(token.content, token.info, true) : null;
    this.last = this.code ? [this.code.element] : elementsOf(tokens);
    this.place.append(...this.last);
  }

  clearLast() {
    for (const element of this.last) element.remove();
    this.last = [];
    this.code = null;
  }

  /** @param {string} text the newest piece */
  showPlain(text) {
    if (!this.plain) {
      this.plain = h("div", { class: "plain-text" }, this.all.split("\n").map(clean).join("\n"));
      this.place.replaceChildren(this.plain);
    } else {
      this.plain.append(document.createTextNode(clean(text)));
    }
  }
}

/**
 * A whole text, as elements in a place of its own.
 * @param {string} text
 */
export function written(text) {
  const place = h("div", { class: "prose" });
  const writer = new Writer(place);
  if (text.length > MAX_TEXT_CHARS) writer.write(text);
  else Object.assign(writer, { all: text, open: text });
  writer.end();
  return place;
}
