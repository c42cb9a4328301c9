// @ts-check
// The service worker of notifications: shows what comes by Web Push, and opens its links.

self.addEventListener("push", (event) => {
  const message = event.data.json();
  const titles = { approve: "Approve", deny: "Deny" };
  const actions = Object.keys(message.answers || {})
    .filter((name) => name in titles)
    .map((name) => ({ action: name, title: titles[name] }));
  event.waitUntil(self.registration.showNotification(message.title, {
    body: message.text,
    tag: message.id,
    icon: "/ui/icon.svg",
    requireInteraction: actions.length > 0,
    data: { link: message.link, answers: message.answers || {} },
    actions,
  }));
});

self.addEventListener("notificationclick", (event) => {
  const { link, answers } = event.notification.data;
  event.notification.close();
  // Opens the page that asks to confirm: a tap on a notification alone answers nothing.
  event.waitUntil(self.clients.openWindow(answers[event.action] || link || "/"));
});
