// Creates DOM elements. Every text is cleaned and inserted as text, never as markup.

const SEQUENCES = new RegExp(
  "\\x1b\\[[0-?]*[ -/]*[@-~]" + // CSI
  "|\\x1b[\\]PX^_][\\s\\S]*?(?:\\x07|\\x1b\\\\|$)" + // OSC, DCS, SOS, PM, APC: to their end
  "|\\x1b[\\s\\S]?" + // any other escape
  "|\\x9b[0-?]*[ -/]*[@-~]", "g"); // CSI in one character
// Controls, and format characters: those that reorder, hide or join text.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;
const PLAIN = /^[\x20-\x7e\n\t]*$/;

/** A text without escape sequences, control characters, and what reorders or hides text. */
export function clean(text) {
  // An untrusted object may have no usable toString.
  const value = typeof text === "object" ? JSON.stringify(text) : String(text);
  if (PLAIN.test(value)) return value;
  return value.replace(/\r\n/g, "\n").replace(SEQUENCES, "")
    .replace(HIDDEN, (c) => (c === "\n" || c === "\t" ? c : ""));
}

/** A text on one line, cut. */
export function oneLine(text, limit = 120) {
  const line = clean(text).split(/\s+/).join(" ").trim();
  return line.length <= limit ? line : line.slice(0, limit - 1) + "…";
}

/**
 * Make an element.
 * @param {string} tag
 * @param {object|null} props attributes; `class`, `style` (an object), `data` (an object),
 *   `on` (an object of listeners), `value`/`checked`/`disabled`… as properties.
 * @param {...*} children nodes, texts, numbers, arrays; null, undefined and false are left out.
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate", "hidden"]);
// URLs may only lead to the dashboard and its own files.
const ADDRESSES = new Set(["href", "src", "xlink:href", "action", "formaction"]);
const HERE = /^(#|\/\w|data:image\/(png|jpeg|gif|webp);)/;

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
      element[name] = value;
    } else if (name.startsWith("on") || name === "srcdoc") {
      throw new Error(`${name} is never set as an attribute`);
    } else if (ADDRESSES.has(name) && !HERE.test(value)) {
      throw new Error(`${name} may only lead to the dashboard`);
    } else {
      element.setAttribute(name, value === true ? "" : clean(value));
    }
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else element.append(document.createTextNode(clean(child)));
  }
}

/** Replace the children of an element. */
export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Set an element's text only if it differs, to keep selections and screen readers undisturbed. */
export function setText(element, text) {
  const value = clean(text);
  if (element.textContent !== value) element.textContent = value;
}

/** Announce a text to screen readers. */
export function announce(text) {
  const place = document.getElementById("announcer");
  place.textContent = "";
  requestAnimationFrame(() => { place.textContent = clean(text); });
}

/** Defer a call while the pointer is down in an element, so that the click still hits it. */
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

/** Call at most once per drawn frame, however often it is asked for. */
export function perFrame(call) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; call(); });
  };
}

/** Call every second until aborted, for relative times. */
export function ticking(call, signal) {
  const timer = setInterval(call, 1000);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
}
