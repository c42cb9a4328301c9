// @ts-check
// Renders a streaming subset of Markdown as elements, line by line.

import { clean, h } from "../../dom.js";
import { button, toast } from "../../components.js";

// Linear-time patterns: model output must not cause catastrophic backtracking.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^#{1,6}\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const INLINE = /(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)|\*\*(?=\S)(.+?)\*\*/g;
const MAX_LINE_CHARS = 4000; // a longer line is shown as plain text

/**
 * A line with its inline code and bold words.
 * @param {string} line @returns {Child[]}
 */
function inline(line) {
  const text = clean(line), parts = [];
  if (text.length > MAX_LINE_CHARS) return [text];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    parts.push(text.slice(last, found.index));
    parts.push(found[1] ? h("code", null, found[2]) : h("strong", null, found[3]));
    last = found.index + found[0].length;
  }
  parts.push(text.slice(last));
  return parts.filter((part) => part !== "");
}

/**
 * Copy the text of an element, or select it where the browser forbids the clipboard.
 * @param {HTMLElement} element
 */
export function copyOf(element, label = "Copy") {
  return button(label, async () => {
    try {
      await navigator.clipboard.writeText(element.textContent);
      toast("copied");
    } catch {
      getSelection()?.selectAllChildren(element);
      toast("Selected. Copy it with the keyboard.");
    }
  }, { tone: "plain tiny" });
}

/** Renders streamed text. Only the incomplete last line is rendered again. */
export class Writer {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    this.rest = "";
    /** @type {any} */
    this.block = null; // the block that the next line may continue: {kind, element, …}
    /** @type {HTMLElement|null} */
    this.tail = null; // shows the incomplete line
  }

  /**
   * Add a piece of text.
   * @param {string} text
   */
  write(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() || "";
    if (lines.length) this.undoTail();
    for (const line of lines) this.line(line);
    this.showTail();
  }

  /** There is no more. */
  end() {
    this.undoTail();
    if (this.rest) this.line(this.rest);
    this.rest = "";
    this.block = null;
  }

  undoTail() {
    this.tail?.remove();
    this.tail = null;
  }

  showTail() {
    if (!this.rest) return this.undoTail();
    const { kind, element } = this.block || {};
    const within = ["code", "grid", "text"].includes(kind);
    if (!this.tail) {
      const text = document.createTextNode(""), more = within && element.firstChild;
      this.tail = h("span", { class: "tail" },
        more && (kind === "text" ? h("br") : document.createTextNode("\n")), text);
      (within ? element : this.place).append(this.tail);
    }
    if (this.tail.lastChild) this.tail.lastChild.textContent = clean(this.rest);
  }

  /** @param {string} line */
  line(line) {
    if (this.block?.kind === "code") return this.codeLine(line);
    const fence = FENCE.exec(line);
    if (fence) return this.openCode(fence);
    if (!line.trim()) {
      this.block = null;
      return;
    }
    const item = ITEM.exec(line);
    if (item) return this.item(item);
    if (/^\s*\|/.test(line)) return this.grid(line);
    const heading = HEADING.exec(line);
    if (heading) {
      this.block = null;
      this.place.append(h("p", { class: "heading" }, h("strong", null, inline(heading[1]))));
      return;
    }
    const quote = QUOTE.exec(line);
    this.words(quote ? "quote" : "text", quote ? quote[1] : line);
  }

  /** @param {RegExpExecArray} options */
  openCode([, mark, rest]) {
    const [language] = rest.trim().split(/\s+/, 1);
    const code = h("code");
    const made = h("div", { class: "code" },
      h("div", { class: "row between" }, h("span", { class: "soft small" }, language || "code"),
        copyOf(code)),
      h("pre", { tabindex: "0", role: "group", "aria-label": `code ${language}`.trim() }, code));
    this.place.append(made);
    this.block = { kind: "code", element: code, mark };
  }

  /** @param {string} line */
  codeLine(line) {
    const { element, mark } = this.block;
    const end = line.trim();
    if (end.length >= mark.length && end === mark[0].repeat(end.length)) {
      this.block = null;
      return;
    }
    element.append(document.createTextNode(`${element.firstChild ? "\n" : ""}${clean(line)}`));
  }

  /** @param {RegExpExecArray} options */
  item([, indent, mark, text]) {
    const ordered = /\d/.test(mark);
    if (this.block?.kind !== "list" || this.block.ordered !== ordered) {
      const list = h(ordered ? "ol" : "ul");
      this.place.append(list);
      this.block = { kind: "list", ordered, list };
    }
    const depth = Math.min(3, Math.floor(indent.replace(/\t/g, "    ").length / 2));
    const made = h("li", { class: depth > 0 && `deep-${depth}` }, inline(text));
    if (ordered) made.value = parseInt(mark, 10);
    this.block.list.append(made);
    this.block.element = made;
  }

  /** @param {string} line */
  grid(line) {
    if (this.block?.kind !== "grid") {
      const element = h("pre", { class: "grid", tabindex: "0", role: "group",
        "aria-label": "table" });
      this.place.append(element);
      this.block = { kind: "grid", element };
    }
    const { element } = this.block;
    element.append(document.createTextNode(`${element.firstChild ? "\n" : ""}${clean(line)}`));
  }

  /** @param {string} kind @param {string} text */
  words(kind, text) {
    const goesOn = this.block?.kind === kind || (this.block?.kind === "list" && kind === "text");
    if (!goesOn) {
      const element = h(kind === "quote" ? "blockquote" : "p");
      this.place.append(element);
      this.block = { kind, element };
    }
    const { element } = this.block;
    if (element.firstChild) element.append(h("br"));
    element.append(...inline(text));
  }
}

/**
 * A whole text, as elements in a place of its own.
 * @param {string} text
 */
export function written(text) {
  const place = h("div", { class: "prose" });
  const writer = new Writer(place);
  writer.write(text);
  writer.end();
  return place;
}
