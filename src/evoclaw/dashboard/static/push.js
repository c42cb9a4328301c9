// @ts-check
// Adds this browser to the receivers of notifications (Web Push), and removes it.

import { byId } from "./dom.js";
import { del, get, hasToken, post } from "./api.js";

const WORKER = "/ui/push-worker.js";
const PATH = "/v1/push/subscriptions";
/** @param {string} id */
const part = (id) => /** @type {HTMLButtonElement} */ (byId(id));

/** @param {string} text @param {{on?: boolean, off?: boolean}} [options] */
function show(text, { on = false, off = false } = {}) {
  part("status").textContent = text;
  part("on").hidden = !on;
  part("off").hidden = !off;
}

/** @param {PushSubscription|null} subscription */
function shown(subscription) {
  if (subscription) show("This device receives notifications.", { off: true });
  else show("This device receives no notifications.", { on: true });
}

/** Why this browser cannot be added; empty if it can. */
function obstacle() {
  if (!hasToken()) return "Log in to the dashboard first, in this tab.";
  if (!window.isSecureContext) return "Browsers permit this over https only, or on localhost.";
  const able = "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;
  return able ? "" : "This browser has no Web Push. On a phone, add this page to the home screen.";
}

/** @param {ServiceWorkerRegistration} registration */
async function subscribe(registration) {
  if (await Notification.requestPermission() !== "granted") {
    throw new Error("The browser does not permit notifications. Permit them for this site first.");
  }
  const { key } = await get("/v1/push/key");
  // One that was made with another key cannot be used.
  await (await registration.pushManager.getSubscription())?.unsubscribe();
  const made = await registration.pushManager.subscribe(
    { userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = made.toJSON();
  await post(PATH, { endpoint, keys: { p256dh: keys?.p256dh, auth: keys?.auth } });
}

/** @param {ServiceWorkerRegistration} registration */
async function unsubscribe(registration) {
  const found = await registration.pushManager.getSubscription();
  if (!found) return;
  try {
    await del(PATH, null, { body: { endpoint: found.endpoint } });
  } catch (problem) {
    if (problem.status !== 404) throw problem; // the service has forgotten it already
  }
  await found.unsubscribe();
}

async function start() {
  const why = obstacle();
  if (why) return show(why);
  await get("/v1/push/key"); // says what is missing if Web Push is not configured
  const registration = await navigator.serviceWorker.register(WORKER);
  /** @param {string} id @param {(registration: ServiceWorkerRegistration) => Promise<void>} work */
  const act = (id, work) => part(id).addEventListener("click", async () => {
    part(id).disabled = true;
    try {
      await work(registration);
      shown(await registration.pushManager.getSubscription());
    } catch (problem) {
      part("status").textContent = problem.message;
    } finally {
      part(id).disabled = false;
    }
  });
  act("on", subscribe);
  act("off", unsubscribe);
  return shown(await registration.pushManager.getSubscription());
}

start().catch((problem) => show(problem.message));
