// @ts-check
// Client of the public HTTP API: requests with the token, and event streams that reconnect.

/**
 * @typedef {(type: string, data: any, id?: string) => void} OnEvent
 * @typedef {{id: string, again: boolean}} Cursor The position in an event stream.
 * @typedef {{signal: AbortSignal, onEvent: OnEvent, onState?: (state: string) => void,
 *   after?: string, forever?: boolean}} FollowOptions
 */

const KEY = "evoclaw.token";
let token = sessionStorage.getItem(KEY) || localStorage.getItem(KEY) || "";

/** An error response: `status`, `code`, and a message for people. */
export class Problem extends Error {
  /**
   * @param {number} status @param {string} code @param {any} message
   * @param {Api.JsonObject<any>} [details]
   */
  constructor(status, code, message, details) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details || {};
  }
}

/** Whether a token is set. */
export function hasToken() {
  return token !== "";
}

/**
 * Whether this is the current token.
 * @param {string} value
 */
export const isToken = (value) => value.trim() === token;

/**
 * Set the token; it is stored for this tab, or on this device if `remember`.
 * @param {string} value @param {boolean} remember
 */
export function useToken(value, remember) {
  token = value.trim();
  sessionStorage.setItem(KEY, token);
  if (remember) localStorage.setItem(KEY, token);
  else localStorage.removeItem(KEY);
}

/** Remove the token. */
export function dropToken() {
  if (localStorage.getItem(KEY) === token) localStorage.removeItem(KEY);
  token = "";
  sessionStorage.removeItem(KEY);
}

/**
 * Call back when the token was removed in another tab.
 * @param {() => void} call
 */
export function onForgotten(call) {
  window.addEventListener("storage", ({ key, oldValue, newValue }) => {
    if (key === KEY && newValue === null && token && oldValue === token) call();
  });
}

const WHO = "evoclaw.who";

/**
 * Delete the drafts of another user: unsent text is only for its author.
 * @param {string} who
 */
export function keepFor(who) {
  if (sessionStorage.getItem(WHO) !== who) forgetKept();
  sessionStorage.setItem(WHO, who);
}

/** Delete everything that this tab stored, except the token. */
export function forgetKept() {
  for (const key of Object.keys(sessionStorage)) {
    if (key.startsWith("evoclaw.") && key !== KEY) sessionStorage.removeItem(key);
  }
}

/** @param {{[name: string]: string}} more */
function headers(more) {
  return { authorization: `Bearer ${token}`, ...more };
}

/** @param {Response} response */
async function problemOf(response) {
  /** @type {Partial<Api.ErrorDetails>} */
  let error = {};
  try {
    error = (await response.json()).error || error;
  } catch {
    // not from EvoClaw: perhaps the error page of a proxy
  }
  if (response.status === 401) window.dispatchEvent(new CustomEvent("evoclaw:out"));
  const text = error.message || `The service answered with HTTP status ${response.status}.`;
  return new Problem(response.status, error.code || "", text, error.details);
}

/**
 * Check that a path does not lead elsewhere, such as through `..` in an id.
 * @param {string} path
 */
function checkedPath(path) {
  const [wanted] = path.split("?");
  if (new URL(path, location.origin).pathname === wanted) return path;
  throw new Problem(404, "not_found", "Nothing has this id. Check the link.");
}

/**
 * @param {string} method @param {string} path @param {unknown} body
 * @param {RequestOptions} [options]
 */
async function ask(method, path, body, { signal, key } = {}) {
  checkedPath(path);
  /** @type {{[name: string]: string}} */
  const more = body === undefined ? {} : { "content-type": "application/json" };
  if (key) more["idempotency-key"] = key;
  let response;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(path, { method, headers: headers(more), body: sent, signal });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new Problem(0, "unreachable",
      "The orchestrator is unreachable. Check that `evoclaw up` is running.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** @param {Response} response */
async function json(response) {
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/**
 * Send a GET request; `query` is an object of parameters.
 * @template {string} Path
 * @param {Path} path @param {Query|null} [query] @param {RequestOptions} [options]
 * @returns {Promise<Api.Get<Path>>}
 */
export async function get(path, query, options) {
  return json(await ask("GET", withQuery(path, query), undefined, options));
}

/**
 * Send a POST request.
 * @template {string} Path
 * @param {Path} path @param {unknown} [body] @param {RequestOptions} [options]
 * @returns {Promise<Api.Post<Path>>}
 */
export async function post(path, body = {}, options) {
  return json(await ask("POST", path, body, options));
}

/**
 * Send a POST request without a body.
 * @template {string} Path
 * @param {Path} path @param {RequestOptions} [options]
 * @returns {Promise<Api.Post<Path>>}
 */
export async function postEmpty(path, options) {
  return json(await ask("POST", path, undefined, options));
}

/**
 * Send a PUT request.
 * @template {string} Path
 * @param {Path} path @param {unknown} body @param {RequestOptions} [options]
 * @returns {Promise<Api.Put<Path>>}
 */
export async function put(path, body, options) {
  return json(await ask("PUT", path, body, options));
}

/**
 * Send a PATCH request.
 * @template {string} Path
 * @param {Path} path @param {unknown} body @param {RequestOptions} [options]
 * @returns {Promise<Api.Patch<Path>>}
 */
export async function patch(path, body, options) {
  return json(await ask("PATCH", path, body, options));
}

/**
 * Send a DELETE request; `options.body` is its body, if it has one.
 * @template {string} Path
 * @param {Path} path @param {Query|null} [query] @param {RequestOptions} [options]
 * @returns {Promise<Api.Delete<Path>>}
 */
export async function del(path, query, options) {
  return json(await ask("DELETE", withQuery(path, query), options?.body, options));
}

/**
 * GET a text that is not JSON, such as a recording of a run.
 * @param {string} path @param {RequestOptions} [options]
 */
export async function text(path, options) {
  return (await ask("GET", path, undefined, options)).text();
}

/**
 * A path with query parameters; empty ones are left out.
 * @param {string} path @param {Query|null} [query]
 */
export function withQuery(path, query) {
  const pairs = Object.entries(query || {})
    .filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => [name, String(value)]);
  return pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
}

/**
 * Follow an event stream; reconnect after the last event when it breaks off.
 * @param {string} path
 * @param {FollowOptions} options `onState` is called with "open", "away" or "over"; `after` is the
 *   id to start after; `forever`: reconnect also when the stream ends.
 */
export async function follow(path, { signal, onEvent, onState = () => {}, after = "", forever }) {
  const cursor = { id: after, again: false };
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 8000)) {
    try {
      /** @type {{[name: string]: string}} */
      const more = cursor.id ? { "last-event-id": cursor.id } : {};
      const response = await fetch(checkedPath(path), { headers: headers(more), signal });
      if (!response.ok) throw await problemOf(response);
      onState("open");
      wait = 250;
      cursor.again = false;
      if (response.body) await read(response.body, cursor, onEvent);
      if (!forever && !cursor.again) {
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

/**
 * @param {ReadableStream<Uint8Array<ArrayBuffer>>} body @param {Cursor} cursor
 * @param {OnEvent} onEvent
 */
async function read(body, cursor, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop() || "";
    for (const frame of frames) dispatch(frame, cursor, onEvent);
  }
}

/** @param {string} frame @param {Cursor} cursor @param {OnEvent} onEvent */
function dispatch(frame, cursor, onEvent) {
  let type = "message", data = "", id;
  for (const line of frame.split("\n")) {
    if (line.startsWith("event: ")) type = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
    else if (line.startsWith("id: ")) id = line.slice(4);
  }
  if (!data) return; // a heartbeat
  if (id !== undefined) cursor.id = id;
  const value = JSON.parse(data);
  if (type === "dropped" || type === "closing" || type === "error") {
    if (type === "dropped") cursor.id = String(value.after);
    cursor.again = true;
    return;
  }
  try {
    onEvent(type, value, id);
  } catch (cause) {
    reportError(cause); // a bug in the dashboard: reconnecting would only hide it
  }
}

/**
 * Wait, or until aborted.
 * @param {number} milliseconds @param {AbortSignal} signal @returns {Promise<void>}
 */
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", done);
    if (signal.aborted) done();
  });
}
