// @ts-check
// Makes elements of the tokens of Markdown, with the element builder of the dashboard.

import { h } from "../dom.js";
import { codeBlock } from "./code.js";
import { isOutside, outsideLink, shownTarget } from "./links.js";

/** @typedef {import("./lexer.js").Token} Token */

const TASK = /^\[([ xX])\](?=\s)/;
// The headings of a text are below those of the view that shows it.
/** @type {Record<string, "h3"|"h4"|"h5"|undefined>} */
const HEADINGS = { h1: "h3", h2: "h4", h3: "h5" };
const TAGS = new Set(["blockquote", "em", "li", "p", "s", "strong", "tbody", "thead", "tr", "ul"]);

/**
 * The tag of an element that Markdown can have.
 * @param {string} tag
 */
const knownTag = (tag) =>
  /** @type {keyof HTMLElementTagNameMap} */ (TAGS.has(tag) ? tag : "span");

/**
 * The elements of some tokens.
 * @param {Token[]} tokens
 * @returns {Element[]}
 */
export function elementsOf(tokens) {
  const root = h("div");
  /** @type {HTMLElement[]} */
  const stack = [root];
  for (const token of tokens) {
    const parent = stack[stack.length - 1];
    if (token.nesting > 0) stack.push(opened(token, parent));
    else if (token.nesting < 0) stack.pop();
    else alone(token, parent);
  }
  return [...root.children];
}

/**
 * Add the element that a token opens; its children go into what is returned.
 * @param {Token} token
 * @param {HTMLElement} parent
 * @returns {HTMLElement}
 */
function opened(token, parent) {
  if (token.hidden) return parent;
  if (token.type === "table_open") {
    const table = h("table");
    parent.append(h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "table" },
      table));
    return table;
  }
  const made = elementOf(token);
  parent.append(made);
  return made;
}

/**
 * @param {Token} token
 * @returns {HTMLElement}
 */
function elementOf(token) {
  const { type, tag } = token;
  if (type === "heading_open") return h(HEADINGS[tag] || "h6");
  if (tag === "ol") return h("ol", { start: token.attrGet("start") });
  if (tag === "th" || tag === "td") {
    const align = /right|center/.exec(token.attrGet("style") || "");
    return h(tag, { scope: tag === "th" && "col", class: align && `at-${align[0]}` });
  }
  return h(knownTag(tag));
}

/**
 * Add the element of a token that contains no others.
 * @param {Token} token
 * @param {HTMLElement} parent
 */
function alone(token, parent) {
  const { type, content, info } = token;
  if (type === "inline") inline(token.children || [], parent);
  else if (type === "fence") parent.append(codeBlock(content.replace(/\n$/, ""), info).element);
  else if (type === "code_block") parent.append(codeBlock(content.replace(/\n$/, "")).element);
  else if (type === "hr") parent.append(h("hr"));
  else parent.append(h("p", null, content));
}

/**
 * Add the parts of a line.
 * @param {Token[]} parts
 * @param {HTMLElement} parent
 */
function inline(parts, parent) {
  const item = parent.closest("li");
  const task = item && !item.textContent && parts[0]?.type === "text"
    ? TASK.exec(parts[0].content) : null;
  if (item && task) {
    item.classList.add("task");
    parent.append(h("input", { type: "checkbox", disabled: true, checked: task[1] !== " ",
      "aria-label": task[1] === " " ? "not done" : "done" }));
    parts[0].content = parts[0].content.slice(task[0].length);
  }
  const stack = [parent];
  for (const part of parts) {
    const into = stack[stack.length - 1];
    if (part.type === "link_open") stack.push(added(into, linkOf(part)));
    else if (part.type === "link_close") closeLink(stack);
    else if (part.nesting > 0) stack.push(added(into, h(knownTag(part.tag))));
    else if (part.nesting < 0) stack.pop();
    else into.append(...leaf(part, into));
  }
}

/**
 * @param {HTMLElement} parent
 * @param {HTMLElement} child
 */
function added(parent, child) {
  parent.append(child);
  return child;
}

/** @param {Token} part */
function linkOf(part) {
  const address = part.attrGet("href") || "";
  return isOutside(address) ? outsideLink(address) : h("span");
}

/** @param {HTMLElement[]} stack */
function closeLink(stack) {
  const link = stack.pop();
  const target = link instanceof HTMLAnchorElement && shownTarget(link);
  if (target) stack[stack.length - 1].append(target);
}

/**
 * @param {Token} part
 * @param {HTMLElement} into
 * @returns {(Node|string)[]}
 */
function leaf(part, into) {
  if (part.type === "softbreak" || part.type === "hardbreak") return [h("br")];
  if (part.type === "code_inline") return [h("code", null, part.content)];
  if (part.type === "image") return image(part, into);
  if (part.type === "plain") return [h("span", { class: "plain-text" }, part.content)];
  return [document.createTextNode(part.content)];
}

/**
 * An image as a link: the dashboard loads nothing from other hosts.
 * @param {Token} part
 * @param {HTMLElement} into
 */
function image(part, into) {
  const text = `image: ${part.content || "no description"}`;
  const address = part.attrGet("src") || "";
  if (into.closest("a") || !isOutside(address)) return [h("span", null, text)];
  const link = outsideLink(address);
  link.append(...h("span", null, text).childNodes);
  return [link, shownTarget(link) || ""];
}
