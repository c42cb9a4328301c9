// Names with values, as several parts of a run show them.

import { h } from "../dom.js";

/** Names with their values; those without one are left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}
