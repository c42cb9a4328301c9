// @ts-check
// The dashboard as an app: its files work offline, and a new version replaces all of them at once.

import { h } from "./dom.js";
import { button } from "./components.js";

const SOON = 10_000; // milliseconds after the start in which a new version is used at once

/** Store the files of the dashboard in this browser, and offer new versions. */
export async function storeFiles() {
  const { serviceWorker } = navigator;
  if (!serviceWorker) return; // browsers offer it over https and on localhost only
  let isServed = Boolean(serviceWorker.controller);
  serviceWorker.addEventListener("controllerchange", () => {
    if (isServed) location.reload(); // by another version
    isServed = true;
  });
  const frame = h("iframe", { src: "/ui/worker.html", hidden: true, title: "Offline files" });
  document.body.append(frame);
  const registration = await serviceWorker.ready;
  const offer = () => offered(registration.waiting);
  registration.addEventListener("updatefound", () => {
    registration.installing?.addEventListener("statechange", offer);
  });
  offer();
}

/** @param {ServiceWorker|null} waiting */
function offered(waiting) {
  if (!waiting || document.getElementById("new-version")) return;
  const use = () => waiting.postMessage("evoclaw:activate");
  // Pages must not get files of two versions, so the new one waits until the page is loaded again.
  if (performance.now() < SOON) use();
  else {
    document.body.append(h("div", { id: "new-version", class: "card row between", role: "status" },
      "A new version of the dashboard is ready.", button("Reload", use, { tone: "primary" })));
  }
}
