// @ts-check
// A virtual list: only visible rows are in the DOM.

import { h, perFrame } from "./dom.js";

/**
 * @template Item
 * @typedef {object} ListOptions
 * @property {string} label
 * @property {number} height of a row, in pixels
 * @property {(item: Item, index: number) => HTMLElement} render
 * @property {(element: HTMLElement, item: Item, index: number) => void} [update] changes the
 *   element of an item that changed; without it, the element is made again
 * @property {number} [narrowest] width of a column, in pixels (0: one column)
 * @property {(item: Item) => unknown} [key]
 */

const AHEAD = 240; // pixels drawn beyond the visible area

/**
 * A scrolling list of rows of one height, several columns if there is room.
 * @template Item
 */
export class VirtualList {
  /** @param {ListOptions<Item>} options */
  constructor({ label, height, render, update, narrowest = 0, key = (item) => item }) {
    this.height = height;
    this.render = render;
    this.update = update;
    this.narrowest = narrowest;
    this.key = key;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<unknown, {item: Item, element: HTMLElement}>} */
    this.drawn = new Map();
    this.inner = h("div", { class: "list-inner" });
    this.element = h("div", { class: "list", tabindex: "0", role: "list", "aria-label": label },
      this.inner);
    this.redraw = perFrame(() => this.draw());
    this.element.addEventListener("scroll", this.redraw, { passive: true });
    this.sizes = new ResizeObserver(this.redraw);
    this.sizes.observe(this.element);
  }

  /**
   * Set the items; unchanged items keep their elements.
   * @param {Item[]} items
   */
  set(items) {
    this.items = items;
    this.redraw();
  }

  /** Stop watching sizes. */
  close() {
    this.sizes.disconnect();
  }

  get columns() {
    return this.narrowest ? Math.max(1, Math.floor(this.element.clientWidth / this.narrowest)) : 1;
  }

  /** Whether the end is visible. */
  get atEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.element;
    return scrollTop + clientHeight >= scrollHeight - this.height;
  }

  /**
   * Scroll to an item.
   * @param {number} index
   */
  scrollTo(index) {
    const top = Math.floor(index / this.columns) * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || top + this.height > scrollTop + clientHeight) {
      this.element.scrollTop = Math.max(0, top - clientHeight / 3);
    }
    this.redraw();
  }

  /** Draw the visible rows. */
  draw() {
    const columns = this.columns, total = this.items.length;
    const rows = Math.ceil(total / columns);
    this.inner.style.setProperty("height", `${rows * this.height}px`);
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor((scrollTop - AHEAD) / this.height)) * columns;
    const last = Math.min(
      total, Math.ceil((scrollTop + clientHeight + AHEAD) / this.height) * columns);
    /** @type {typeof this.drawn} */
    const wanted = new Map();
    for (let index = first; index < last; index += 1) {
      const item = this.items[index], key = this.key(item);
      const old = this.drawn.get(key);
      const element = old && old.item === item ? old.element : this.made(item, index, old);
      this.place(element, index, columns, total);
      wanted.set(key, { item, element });
    }
    for (const [key, { element }] of this.drawn) {
      if (wanted.get(key)?.element !== element) element.remove();
    }
    this.drawn = wanted;
    this.order();
  }

  /** Sort the elements by position: the Tab key follows the DOM order. */
  order() {
    const { activeElement } = document;
    let at = this.inner.firstChild;
    for (const { element } of this.drawn.values()) {
      if (element === at) at = element.nextSibling;
      else this.inner.insertBefore(element, at);
    }
    if (activeElement instanceof HTMLElement && activeElement !== document.activeElement
      && this.inner.contains(activeElement)) {
      activeElement.focus({ preventScroll: true });
    }
  }

  /** @param {Item} item @param {number} index @param {{item: Item, element: HTMLElement}} [old] */
  made(item, index, old) {
    if (old && this.update) {
      this.update(old.element, item, index);
      return old.element;
    }
    const element = this.render(item, index);
    if (!element.hasAttribute("role")) element.setAttribute("role", "listitem");
    element.classList.add("list-item");
    // Keep the focus in a replaced element.
    const focused = old && old.element.contains(document.activeElement);
    this.inner.append(element);
    /** @type {HTMLElement|null} */
    const first = element.querySelector("a, button, [tabindex]");
    if (focused) (first || element).focus();
    return element;
  }

  /**
   * @param {HTMLElement} element @param {number} index @param {number} columns
   * @param {number} total
   */
  place(element, index, columns, total) {
    const row = Math.floor(index / columns), column = index % columns;
    const { style } = element;
    style.setProperty("transform", `translateY(${row * this.height}px)`);
    style.setProperty("left", `${(100 * column) / columns}%`);
    style.setProperty("width", `${100 / columns}%`);
    style.setProperty("height", `${this.height}px`);
    element.setAttribute("aria-setsize", String(total));
    element.setAttribute("aria-posinset", String(index + 1));
  }
}
