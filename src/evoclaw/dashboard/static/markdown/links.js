// @ts-check
// Links that leave the dashboard: their addresses are checked, and the reader sees where they lead.

import { h } from "../dom.js";

const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

/**
 * The address as a URL; null if it is not one that may be opened.
 * @param {string} address
 */
function outside(address) {
  try {
    const url = new URL(address);
    return PROTOCOLS.has(url.protocol) ? url : null;
  } catch {
    return null; // a relative address leads nowhere
  }
}

/**
 * Whether a text of a model may link to an address.
 * @param {string} address
 */
export const isOutside = (address) => outside(address) !== null;

/**
 * A link that opens in another tab, which learns nothing about the dashboard.
 * @param {string} address one that `isOutside` accepts
 * @returns {HTMLAnchorElement}
 */
export function outsideLink(address) {
  const url = outside(address);
  if (!url) throw new Error("Only http, https and mailto links can be opened.");
  const link = /** @type {HTMLAnchorElement} */ (h("a", { class: "outside", target: "_blank",
    rel: "noopener noreferrer", referrerpolicy: "no-referrer", title: url.href }));
  link.href = url.href;
  return link;
}

/**
 * The host or the mail address that a link leads to, unless its own text says it.
 * @param {HTMLAnchorElement} link
 * @returns {HTMLElement|null}
 */
export function shownTarget(link) {
  const url = new URL(link.href);
  const target = url.protocol === "mailto:" ? url.pathname : url.host;
  const says = [url.href, url.href.replace(/\/$/, ""), target];
  if (says.includes((link.textContent || "").trim())) return null;
  return h("span", { class: "soft small target" }, ` (${target})`);
}
