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
  if (subscription) show("Notifications are on for this device.", { off: true });
  else show("Notifications are off for this device.", { on: true });
}

/** Why this browser cannot be added; empty if it can. */
function obstacle() {
  if (!hasToken()) return "You are not logged in. Open the dashboard in this tab and log in first.";
  if (!window.isSecureContext) {
    return "Browsers allow notifications only over https or on localhost.";
  }
  const able = "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;
  return able ? "" : "This browser does not support Web Push. On an iPhone, add the dashboard "
    + "to the home screen and open it from there.";
}

/** @param {ServiceWorkerRegistration} registration */
async function subscribe(registration) {
  if (await Notification.requestPermission() !== "granted") {
    throw new Error("Notifications are blocked. Allow them for this site in the browser, then "
      + "try again.");
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
  await navigator.serviceWorker.register(WORKER);
  // Only a worker that is active can be subscribed, and receives messages.
  const registration = await navigator.serviceWorker.ready;
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
