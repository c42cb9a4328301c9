// @ts-check
// The dashboard: login, navigation between views, and the count of what waits for a person.

import { dropToken, forgetKept, hasToken, isToken, onForgotten, pause, useToken } from "./api.js";
import { announce, byId, clean, h, inside, oneLine, replace } from "./dom.js";
import { begin, forget, known, me, on } from "./live.js";
import { button, confirmed, dialog, failed, field, toast } from "./components.js";
import { showStopBanner } from "./stops.js";
import { storeFiles } from "./offline.js";

const VIEWS = [
  ["fleet", "Fleet", "f"], ["chat", "Chat", "c"], ["runs", "Runs", "r"],
  ["agents", "Agents", "n"], ["evolution", "Evolution", "e"], ["workflows", "Workflows", "w"],
  ["approvals", "Approvals", "a"], ["tools", "Tools & skills", "t"], ["metrics", "Metrics", "m"],
  ["audit", "Audit", "u"], ["settings", "Settings", "s"],
];
/**
 * The module of each view; a view may have another module for a single item.
 * @type {{[view: string]: (args: string[]) => string}}
 */
const MODULES = { runs: (args) => (args.length ? "run" : "runs") };

// The views that a phone shows in its bottom bar; a button opens the others.
const PRIMARY = new Set(["chat", "approvals", "runs", "fleet"]);
const RETRY = 3000; // milliseconds until an unreachable service is asked again

/** @type {AbortController|null} */
let session = null; // aborted on logout
/** @type {AbortController|null} */
let reconnecting = null; // aborted when the service answers, and on logout
/** @type {AbortController|null} */
let shown = null; // aborted when another view is shown

/** The view and its arguments, from the URL fragment. */
function place() {
  const [path] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...args] = path.split("/").filter(Boolean).map(decoded);
  return VIEWS.some(([view]) => view === name) ? { name, args } : { name: "chat", args: [] };
}

/**
 * Decode a part of the URL; an invalid one is returned as it is.
 * @param {string} piece
 */
function decoded(piece) {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}

function frame() {
  const links = VIEWS.map(([name, title]) => h("li", { class: !PRIMARY.has(name) && "secondary" },
    h("a", { href: `#/${name}`, data: { view: name } }, title,
      name === "approvals" && h("span", { class: "count", id: "waiting" }))));
  return h("div", { class: "frame" },
    h("header", { class: "top" },
      h("a", { class: "brand", href: "#/chat" }, "EvoClaw"),
      h("span", { id: "link", class: "link-state", role: "status" }),
      h("button", { type: "button", class: "plain", id: "theme", "aria-label": "Change theme",
        on: { click: changeTheme } }, "◐"),
      h("button", { type: "button", class: "plain", id: "leave", on: { click: logOut } },
        "Log out")),
    h("div", { id: "stops" }),
    h("nav", { "aria-label": "Views" }, h("ul", null, links, h("li", null, moreButton()))),
    h("main", { id: "main", tabindex: "-1" }));
}

function moreButton() {
  const made = h("button", { type: "button", id: "more", "aria-expanded": "false" }, "More");
  made.addEventListener("click", () => showMore(made.ariaExpanded !== "true"));
  return made;
}

/**
 * Show or hide the views that are not in the bottom bar of a phone.
 * @param {boolean} wanted
 */
function showMore(wanted) {
  const more = byId("more");
  more.setAttribute("aria-expanded", String(wanted));
  more.closest("nav")?.toggleAttribute("data-open", wanted);
}

/** Keep the frame above the keyboard: not every browser makes the page smaller for it. */
function fitKeyboard() {
  const { height = innerHeight, scale = 1 } = visualViewport || {};
  const { style } = document.documentElement;
  if (scale === 1 && height < innerHeight) style.setProperty("--visible-height", `${height}px`);
  else style.removeProperty("--visible-height");
}

/** @param {string} name @param {string[]} args */
const fileOf = (name, args) => MODULES[name]?.(args) || name;

/** The module of a view. @param {string} file @returns {Promise<View>} */
const module = (file) => import(`./views/${file}/${file}.js`);

async function show() {
  if (!session) return;
  showMore(false);
  shown?.abort();
  shown = new AbortController();
  const { signal } = shown, { name, args } = place();
  for (const link of document.querySelectorAll("nav a[data-view]")) {
    if (link.getAttribute("data-view") === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const root = byId("main");
  try {
    const file = fileOf(name, args), view = await module(file);
    if (signal.aborted) return;
    const heading = h("h1", { tabindex: "-1" }, view.title);
    const body = h("div", { class: `view view-${file}` });
    replace(root, heading, body);
    document.title = `${view.title} · EvoClaw`;
    announce(view.title);
    await view.mount(body, args, signal);
  } catch (cause) {
    if (!signal.aborted && cause.name !== "AbortError") replace(root, failed(cause, show));
  }
}

function showWaiting() {
  const number = known.approvals.filter((approval) => approval.standing === "waiting").length
    + known.questions.length;
  const place = byId("waiting");
  replace(place, number ? String(number) : null,
    number > 0 && h("span", { class: "unseen" }, " waiting for you"));
}

/** @param {LinkState} state */
function showLink(state) {
  const place = byId("link");
  replace(place, state === "open" ? "live" : "connecting…");
  place.dataset.state = state;
}

/** Show the current user: a link may have logged in another user than expected. */
function showUser() {
  const { tenant, user, token } = me(), place = byId("leave");
  place.title = clean(`Logged in as ${user || token}, tenant ${tenant}`);
  if (user) replace(place, `Log out ${oneLine(user, 14)}`);
}

async function enter() {
  session = new AbortController();
  const { signal } = session;
  const root = byId("app");
  try {
    replace(root, frame());
    showLink("away");
    on("approvals", showWaiting, signal);
    on("questions", showWaiting, signal);
    on("stops", () => showStopBanner(byId("stops")), signal);
    on("link", showLink, signal);
    const { name, args } = place();
    module(fileOf(name, args)).catch(() => {}); // loads meanwhile; `show` reports a failure
    await begin(signal);
    showUser();
    await show();
  } catch (cause) {
    if (signal.aborted) return;
    session = null;
    if (cause.code === "unreachable") showUnreachable(cause);
    else replace(root, failed(cause, enter));
  }
}

/**
 * Say that the service is unreachable, and try again until it answers.
 * @param {Error} cause
 */
async function showUnreachable(cause) {
  reconnecting = new AbortController();
  const { signal } = reconnecting;
  const again = () => {
    reconnecting?.abort();
    return enter();
  };
  replace(byId("app"), h("main", { class: "login" }, h("div", { class: "card", role: "alert" },
    h("h1", null, "EvoClaw"), h("p", null, cause.message),
    h("p", { class: "hint" }, "The dashboard reconnects automatically."),
    h("div", { class: "row" }, button("Try again", again), button("Log out", logOut)))));
  while (!signal.aborted) {
    await pause(RETRY, signal);
    const answers = await fetch("/health/live", { signal }).then(({ ok }) => ok, () => false);
    if (answers && !signal.aborted) await again();
  }
}

/** @param {string} why */
function askToken(why) {
  const input = h("input", { type: "password", autocomplete: "current-password", required: true,
    name: "token", "aria-describedby": "login-why" });
  const keep = h("input", { type: "checkbox" });
  /** @param {Event} event */
  const enterNow = (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    useToken(input.value, keep.checked);
    enter();
  };
  replace(byId("app"), h("main", { class: "login" },
    h("form", { on: { submit: enterNow } },
      h("h1", null, "EvoClaw"), h("p", { id: "login-why", role: "alert" }, why),
      field("Token", input), h("label", { class: "check" }, keep, " Stay logged in on this device"),
      h("button", { class: "primary" }, "Log in"),
      h("p", { class: "hint" }, "On the orchestrator's machine, ", h("code", null, "evoclaw page"),
        " prints a link that logs you in; ", h("code", null, "evoclaw token new"),
        " creates a token."))));
  input.focus();
}

function logOut() {
  forgetKept();
  leave("You are logged out.");
}

/**
 * Log out: remove the user's data from the screen and from memory.
 * @param {string} why
 */
function leave(why) {
  session?.abort();
  shown?.abort();
  reconnecting?.abort();
  session = null;
  forget();
  window.dispatchEvent(new CustomEvent("evoclaw:left"));
  for (const open of document.querySelectorAll("dialog")) open.remove();
  replace(byId("toasts"));
  dropToken();
  askToken(why);
}

function changeTheme() {
  const order = ["", "light", "dark"];
  const next = order[(order.indexOf(localStorage.getItem("evoclaw.theme") || "") + 1) % 3];
  localStorage.setItem("evoclaw.theme", next);
  setTheme();
  toast(`Theme: ${next || "system"}`);
}

function setTheme() {
  const theme = localStorage.getItem("evoclaw.theme") || "";
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

let began = false; // "g" was pressed, and a view's letter may follow

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.key === "Escape" && session) showMore(false);
  const writing = inside(event,"input, textarea, select, [contenteditable]");
  if (writing || event.ctrlKey || event.metaKey || event.altKey || !session) return;
  if (event.key === "?") return help();
  const view = began && VIEWS.find(([, , letter]) => letter === event.key);
  began = event.key === "g";
  if (view) location.hash = `#/${view[0]}`;
}

function help() {
  if (document.querySelector("dialog[open]")) return;
  const keys = dialog("Keyboard shortcuts", h("dl", { class: "keys" },
    VIEWS.map(([, title, letter]) => [
      h("dt", null, h("kbd", null, `g ${letter}`)), h("dd", null, title)]),
    h("dt", null, h("kbd", null, "?")), h("dd", null, "Show this list")),
  h("p", null, h("a", { href: "#/settings/start",
    on: { click: () => keys.close() } }, "First steps")));
}

/** A link from `evoclaw page` has its token in the fragment, which browsers do not send. */
async function takeToken() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return false;
  const brought = decoded(found[1]);
  history.replaceState(null, "", location.pathname);
  if (isToken(brought)) return false;
  // A malicious link must not silently make the user work under another account.
  if (hasToken() && await confirmed("Log in as another user?", "This link contains another token. "
    + "If you continue, it replaces your current token, and everything you do is recorded under "
    + "the owner of the new one. Continue only if you created the link yourself.",
  { action: "Log in with the link" }) === null) return false;
  if (session) leave("");
  useToken(brought, false);
  return true;
}

async function moved() {
  if (await takeToken()) await enter();
  else await show();
}

setTheme();
window.addEventListener("hashchange", moved);
onForgotten(() => leave("You logged out in another tab."));
window.addEventListener("evoclaw:out", () => {
  if (session) leave(known.me ? "Your token is no longer valid. Log in again."
    : "This token is not valid. Check that you copied all of it.");
});
document.addEventListener("keydown", onKey);
visualViewport?.addEventListener("resize", fitKeyboard);
byId("skip")
  .addEventListener("click", () => document.getElementById("main")?.focus());
await takeToken();
if (hasToken()) await enter();
else askToken("Enter your API token.");
storeFiles().catch(reportError); // last: it loads all files, and the first screen comes first
