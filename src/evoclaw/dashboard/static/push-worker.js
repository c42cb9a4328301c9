// @ts-check
// The service worker of notifications: shows what comes by Web Push, and opens its links.

/** @type {ServiceWorkerGlobalScope} */
const worker = /** @type {any} */ (self);
const TITLES = new Map([["approve", "Approve"], ["deny", "Deny"]]);

worker.addEventListener("push", (event) => {
  const message = event.data?.json();
  const actions = [...TITLES].filter(([action]) => Object.hasOwn(message.answers || {}, action))
    .map(([action, title]) => ({ action, title }));
  /** @type {NotificationOptions & {actions: {action: string, title: string}[]}} */
  const options = {
    body: message.text,
    tag: message.id,
    icon: "/ui/icons/icon-192.png",
    requireInteraction: actions.length > 0,
    data: { link: message.link, answers: message.answers || {} },
    actions,
  };
  event.waitUntil(worker.registration.showNotification(message.title, options));
});

worker.addEventListener("notificationclick", (event) => {
  const { link, answers } = event.notification.data;
  event.notification.close();
  // Opens the page that asks to confirm: a tap on a notification alone answers nothing.
  event.waitUntil(worker.clients.openWindow(answers[event.action] || link || "/"));
});
