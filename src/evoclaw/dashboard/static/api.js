// The public HTTP API: requests with the token, and event streams that come back by themselves.

const KEY = "evoclaw.token";
let token = sessionStorage.getItem(KEY) || localStorage.getItem(KEY) || "";

/** Something was refused or failed: `status`, `code`, and a text for people. */
export class Problem extends Error {
  constructor(status, code, message, details) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details || {};
  }
}

/** Whether there is a token to show. */
export function hasToken() {
  return token !== "";
}

/** Whether this is the token that is shown already. */
export const isToken = (value) => value.trim() === token;

/** Use a token from now on; it is kept for this tab, or on this device if `remember`. */
export function useToken(value, remember) {
  token = value.trim();
  sessionStorage.setItem(KEY, token);
  if (remember) localStorage.setItem(KEY, token);
  else localStorage.removeItem(KEY);
}

/** Forget the token. */
export function dropToken() {
  if (localStorage.getItem(KEY) === token) localStorage.removeItem(KEY);
  token = "";
  sessionStorage.removeItem(KEY);
}

/** Be told when the token that is used here was forgotten in another tab. */
export function onForgotten(call) {
  window.addEventListener("storage", ({ key, oldValue, newValue }) => {
    if (key === KEY && newValue === null && token && oldValue === token) call();
  });
}

const WHO = "evoclaw.who";

/** What was typed here and not sent is for whoever typed it: nobody else finds it. */
export function keepFor(who) {
  if (sessionStorage.getItem(WHO) !== who) forgetKept();
  sessionStorage.setItem(WHO, who);
}

/** Let go of all that was kept in this tab, but for the token. */
export function forgetKept() {
  for (const key of Object.keys(sessionStorage)) {
    if (key.startsWith("evoclaw.") && key !== KEY) sessionStorage.removeItem(key);
  }
}

function headers(more) {
  return { authorization: `Bearer ${token}`, ...more };
}

async function problemOf(response) {
  let said = {};
  try {
    said = (await response.json()).error || {};
  } catch {
    said = {}; // not ours: a proxy's own page, perhaps
  }
  if (response.status === 401) window.dispatchEvent(new CustomEvent("evoclaw:out"));
  const text = said.message || `the server answered ${response.status}`;
  return new Problem(response.status, said.code || "", text, said.details);
}

/** An address as it is meant: a name in it that leads elsewhere, as `..`, is nobody's. */
function meant(path) {
  const [wanted] = path.split("?");
  if (new URL(path, location.origin).pathname === wanted) return path;
  throw new Problem(404, "not_found", "there is nothing of that name");
}

async function ask(method, path, body, { signal, key } = {}) {
  meant(path);
  const more = body === undefined ? {} : { "content-type": "application/json" };
  if (key) more["idempotency-key"] = key;
  let response;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(path, { method, headers: headers(more), body: sent, signal });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new Problem(0, "unreachable", "the orchestrator cannot be reached; is it up?");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function json(response) {
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** Ask for something; `query` is an object of parameters. */
export async function get(path, query, options) {
  return json(await ask("GET", withQuery(path, query), undefined, options));
}

/** Have something done. */
export async function post(path, body = {}, options) {
  return json(await ask("POST", path, body, options));
}

/** Have something done that takes no body. */
export async function postEmpty(path, options) {
  return json(await ask("POST", path, undefined, options));
}

/** Change something. */
export async function patch(path, body, options) {
  return json(await ask("PATCH", path, body, options));
}

/** Remove something. */
export async function del(path, query, options) {
  return json(await ask("DELETE", withQuery(path, query), undefined, options));
}

/** A text that is no JSON, such as a recording of a run. */
export async function text(path, options) {
  return (await ask("GET", path, undefined, options)).text();
}

/** An address with parameters; those that are empty are left out. */
export function withQuery(path, query) {
  const pairs = Object.entries(query || {})
    .filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
}

/**
 * Follow an event stream; what breaks off is taken up again behind the last event.
 * @param {string} path
 * @param {object} options `signal`; `onEvent(type, data, id)`; `onState("open"|"away"|"over")`;
 *   `after`, the id to begin behind; `forever`: a stream that ends is asked for again.
 */
export async function follow(path, { signal, onEvent, onState = () => {}, after = "", forever }) {
  const place = { id: after, again: false };
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 8000)) {
    try {
      const more = place.id ? { "last-event-id": place.id } : {};
      const response = await fetch(meant(path), { headers: headers(more), signal });
      if (!response.ok) throw await problemOf(response);
      onState("open");
      wait = 250;
      place.again = false;
      await read(response.body, place, onEvent);
      if (!forever && !place.again) {
        onState("over");
        return;
      }
    } catch (cause) {
      if (signal.aborted) return;
      const final = cause instanceof Problem && [401, 403, 404].includes(cause.status);
      onState("away");
      if (final) throw cause;
    }
    await pause(wait, signal);
  }
}

async function read(body, place, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) tell(frame, place, onEvent);
  }
}

function tell(frame, place, onEvent) {
  let type = "message", data = "", id;
  for (const line of frame.split("\n")) {
    if (line.startsWith("event: ")) type = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
    else if (line.startsWith("id: ")) id = line.slice(4);
  }
  if (!data) return; // a sign of life
  if (id !== undefined) place.id = id;
  const value = JSON.parse(data);
  if (type === "dropped" || type === "closing" || type === "error") {
    if (type === "dropped") place.id = String(value.after);
    place.again = true;
    return;
  }
  onEvent(type, value, id);
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
