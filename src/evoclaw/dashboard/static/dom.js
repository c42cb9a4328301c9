// @ts-check
// Creates DOM elements. Every text is cleaned and inserted as text, never as markup.

const SEQUENCES = new RegExp(
  "\\x1b\\[[0-?]*[ -/]*[@-~]" + // CSI
  "|\\x1b[\\]PX^_][\\s\\S]*?(?:\\x07|\\x1b\\\\|$)" + // OSC, DCS, SOS, PM, APC: to their end
  "|\\x1b[\\s\\S]?" + // any other escape
  "|\\x9b[0-?]*[ -/]*[@-~]", "g"); // CSI in one character
// Controls, and format characters: those that reorder, hide or join text.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;
const PLAIN = /^[\x20-\x7e\n\t]*$/;

/**
 * A text without escape sequences, control characters, and what reorders or hides text.
 * @param {unknown} text
 */
export function clean(text) {
  // An untrusted object may have no usable toString.
  const value = typeof text === "object" ? JSON.stringify(text) : String(text);
  if (PLAIN.test(value)) return value;
  return value.replace(/\r\n/g, "\n").replace(SEQUENCES, "")
    .replace(HIDDEN, (c) => (c === "\n" || c === "\t" ? c : ""));
}

/**
 * A text on one line, cut.
 * @param {unknown} text
 */
export function oneLine(text, limit = 120) {
  const line = clean(text).split(/\s+/).join(" ").trim();
  return line.length <= limit ? line : line.slice(0, limit - 1) + "…";
}

/**
 * A table whose names may come from anywhere: `constructor` and the like are not in it.
 * @template Value
 * @param {{[name: string]: Value}} values
 * @returns {{[name: string]: Value|undefined}}
 */
export const lookup = (values) => Object.assign(Object.create(null), values);

/**
 * Make an element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props|null} [props] attributes; `class`, `style` (an object), `data` (an object),
 *   `on` (an object of listeners), `value`/`checked`/`disabled`… as properties.
 * @param {...Child} children nodes, texts, numbers, arrays; null, undefined and false are left out.
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/**
 * The same for SVG.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props|null} [props]
 * @param {...Child} children
 */
export function s(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate", "hidden"]);
// URLs may only lead to the dashboard and its own files.
const ADDRESSES = new Set(["href", "src", "xlink:href", "action", "formaction"]);
const HERE = /^(#|\/\w|data:image\/(png|jpeg|gif|webp);)/;

/**
 * @template {HTMLElement|SVGElement} Made
 * @param {Made} element
 * @param {Props|null|undefined} props
 * @param {Child[]} children
 * @returns {Made}
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) {
        element.addEventListener(event, listener);
      }
    } else if (name === "style") {
      for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    } else if (name === "data") {
      for (const [key, one] of Object.entries(value)) element.dataset[key] = one;
    } else if (PROPERTIES.has(name)) {
      Object.assign(element, { [name]: value });
    } else if (name.startsWith("on") || name === "srcdoc") {
      throw new Error(`${name} is never set as an attribute`);
    } else if (ADDRESSES.has(name) && !HERE.test(String(value))) {
      throw new Error(`${name} may only lead to the dashboard`);
    } else {
      element.setAttribute(name, value === true ? "" : clean(value));
    }
  }
  add(element, children);
  return element;
}

/**
 * @param {Element} element
 * @param {Child[]} children
 */
function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else element.append(document.createTextNode(clean(child)));
  }
}

/**
 * Replace the children of an element.
 * @template {Element} Changed
 * @param {Changed} element
 * @param {...Child} children
 */
export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/**
 * Set an element's text only if it differs, to keep selections and screen readers undisturbed.
 * @param {Node|null} element
 * @param {unknown} text
 */
export function setText(element, text) {
  const value = clean(text);
  if (element && element.textContent !== value) element.textContent = value;
}

/**
 * Find an element of the page that is always there.
 * @param {string} id
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The document has no element ${id}.`);
  return found;
}

/**
 * The closest element around the target of an event that matches a selector.
 * @param {Event} event @param {string} selector
 * @returns {HTMLElement|null}
 */
export function inside({ target }, selector) {
  return target instanceof Element ? target.closest(selector) : null;
}

/**
 * Announce a text to screen readers.
 * @param {unknown} text
 */
export function announce(text) {
  const place = byId("announcer");
  place.textContent = "";
  requestAnimationFrame(() => { place.textContent = clean(text); });
}

/**
 * Defer a call while the pointer is down in an element, so that the click still hits it.
 * @param {HTMLElement} place
 * @param {AbortSignal} signal
 * @param {() => void} call
 */
export function unpressed(place, signal, call) {
  let pressed = false, asked = false;
  const released = () => {
    pressed = false;
    if (asked) setTimeout(later); // the click comes first
  };
  const later = () => {
    asked = pressed;
    if (!pressed && !signal.aborted) call();
  };
  place.addEventListener("pointerdown", () => { pressed = true; }, { signal });
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, released, { signal });
  }
  return later;
}

/**
 * Call at most once per drawn frame, however often it is asked for.
 * @param {() => void} call
 */
export function perFrame(call) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; call(); });
  };
}

/**
 * Call when a signal is aborted; now if it is already, as no event comes then.
 * @param {AbortSignal} signal
 * @param {() => void} call
 */
export function onAbort(signal, call) {
  if (signal.aborted) call();
  else signal.addEventListener("abort", call, { once: true });
}

/**
 * Call every second until aborted, for relative times.
 * @param {() => void} call
 * @param {AbortSignal} signal
 */
export function ticking(call, signal, milliseconds = 1000) {
  const timer = setInterval(call, milliseconds);
  onAbort(signal, () => clearInterval(timer));
}
