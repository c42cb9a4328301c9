// @ts-check
// The service worker of the dashboard: its files, stored by version, also while the service is
// unreachable. It never touches the API.

/** @type {ServiceWorkerGlobalScope} */
const worker = /** @type {any} */ (self);
const PREFIX = "evoclaw-files-";
const NAME = PREFIX + (new URL(location.href).searchParams.get("v") || "");

/** Store all files of one version, or none. */
async function install() {
  const response = await fetch("/ui/files.json", { cache: "no-store" });
  const { version, files } = await response.json();
  if (PREFIX + version !== NAME) throw new Error("the service has another version by now");
  const cache = await caches.open(NAME);
  await cache.addAll(files.map((/** @type {string} */ path) =>
    new Request(path, { cache: "no-cache", redirect: "error" })));
}

/** Delete the files of other versions, and serve the open pages. */
async function activate() {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== NAME)
    .map((name) => caches.delete(name)));
  await worker.clients.claim();
}

/**
 * A stored file; one that is not stored is asked of the service.
 * @param {Request} request
 */
async function answer(request) {
  const cache = await caches.open(NAME);
  return await cache.match(request, { ignoreSearch: true }) || fetch(request);
}

worker.addEventListener("install", (event) => event.waitUntil(install()));
worker.addEventListener("activate", (event) => event.waitUntil(activate()));
worker.addEventListener("message", (event) => {
  if (event.data === "evoclaw:activate") event.waitUntil(worker.skipWaiting());
});
worker.addEventListener("fetch", (event) => {
  const { request } = event, { origin, pathname } = new URL(request.url);
  const isFile = pathname === "/" || pathname.startsWith("/ui/");
  if (request.method !== "GET" || origin !== location.origin || !isFile) return;
  if (pathname === "/ui/files.json") return;
  event.respondWith(answer(request));
});
