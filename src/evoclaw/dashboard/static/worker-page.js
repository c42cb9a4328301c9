// @ts-check
// Registers the service worker of the dashboard. The dashboard's own policy forbids it to register
// a script, so it does this in a frame.

const { version } = await (await fetch("/ui/files.json", { cache: "no-store" })).json();
// Another version is another address, so that the browser installs it.
await navigator.serviceWorker.register(`/ui/worker.js?v=${encodeURIComponent(version)}`,
  { scope: "/" });
