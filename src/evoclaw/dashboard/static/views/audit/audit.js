// @ts-check
// Audit: search the log, and verify its integrity.

import { get } from "../../api.js";
import { h, oneLine, replace } from "../../dom.js";
import { some } from "../../format.js";
import { badge, button, empty, field, jsonBlock, load, select, table, verdictBadge, when }
  from "../../components.js";

export const title = "Audit";

const FIELDS = [["text", "Text"], ["tool", "Tool"], ["agent", "Agent or edge"], ["user", "User"],
  ["run_id", "Run"], ["kind", "Kind"]];
const SPANS = [["", "any time"], ["3600", "last hour"], ["86400", "last 24 hours"],
  ["604800", "last 7 days"]];

/**
 * Show the search form, the records, and the integrity check.
 * @param {HTMLElement} root @param {string[]} args @param {AbortSignal} signal
 */
export async function mount(root, args, signal) {
  const place = h("div"), checked = h("div");
  const inputs = new Map(FIELDS.map(([name]) => [name, h("input", { type: "search", name })]));
  const ofRun = inputs.get("run_id");
  if (ofRun && args[0] === "run" && args[1]) ofRun.value = args[1];
  const verdict = select([["", "any verdict"], "allow", "deny", "ask"]);
  const span = select(SPANS, "");
  const look = () => load(place, () => search(inputs, verdict, span, signal), records, signal);
  const form = h("form", { class: "row filters", on: { submit: (event) => {
    event.preventDefault();
    look();
  } } }, FIELDS.map(([name, text]) => field(text, inputs.get(name))), field("Verdict", verdict),
  field("When", span), h("button", { class: "primary" }, "Search"),
  button("Verify the log", () => verify(checked, signal)));
  replace(root, form, checked, place);
  await look();
}

/**
 * @param {Map<string, HTMLInputElement>} inputs @param {HTMLSelectElement} verdict
 * @param {HTMLSelectElement} span @param {AbortSignal} signal
 */
function search(inputs, verdict, span, signal) {
  const query = Object.fromEntries([...inputs].map(([name, input]) => [name, input.value.trim()]));
  const since = span.value ? Math.floor(Date.now() / 1000 - Number(span.value)) : "";
  return get("/v1/audit", { ...query, verdict: verdict.value, since, limit: 300 }, { signal });
}

/** @param {Api.AuditPage} options */
function records({ items }) {
  if (!items.length) return empty("No matching records.");
  return [h("p", { class: "soft small", role: "status" }, some(items.length, "record"),
    items.length === 300 ? " (the newest; narrow the search to see others)" : ""),
  table("audit records, the newest first", COLUMNS, items.toReversed())];
}

/** @type {Column<Api.JsonObject<any>>[]} */
const COLUMNS = [
  { title: "When", cell: (one) => when(one.at) },
  { title: "Who", cell: (one) => [one.user || "", one.user && one.agent_id ? " / " : "",
    one.agent_id || (one.user ? "" : "–")] },
  { title: "What", main: true, cell: (one) => [h("span", { class: "mono" }, one.tool || one.kind),
    one.device && one.device !== one.agent_id && ` on ${one.device}`] },
  { title: "Verdict", cell: (one) => [one.verdict && verdictBadge(one.verdict), " ",
    one.result && outcome(one.result)] },
  { title: "Details", cell: (one) => h("details", null,
    h("summary", null, oneLine(gist(one), 90)), detail(one)) },
];

/** @param {string} result */
function outcome(result) {
  const text = String(result);
  return badge(text === "success" || text === "ok" ? "good" : "quiet", text);
}

/** @param {Api.JsonObject<any>} one */
function gist(one) {
  if (one.parameters !== undefined) return JSON.stringify(one.parameters);
  return one.reason || one.model || one.path || one.code || one.kind || "";
}

/** @param {Api.JsonObject<any>} one */
function detail(one) {
  return h("div", null,
    one.run_id && h("p", { class: "small" },
      h("a", { href: `#/runs/${one.run_id}` }, "Show the run")),
    jsonBlock(one, `record ${one.seq}`));
}

/** @param {HTMLElement} place @param {AbortSignal} signal */
function verify(place, signal) {
  return load(place, () => get("/v1/audit/verify", null, { signal }), report, signal);
}

/** @param {Api.AuditReport} found */
function report(found) {
  const dropped = found.dropped || [];
  const span = `records ${found.first} to ${found.last}`;
  const signed = found.signed ? `signed up to record ${found.signed}` : "no signed checkpoint yet";
  return h("div", { class: "card", role: "status" },
    found.ok ? badge("good", "integrity verified") : badge("bad", "integrity check failed"),
    ` ${some(found.records, "record")} (${span}), `,
    `${some(found.checkpoints, "checkpoint")}, ${signed}.`,
    dropped.length > 0 && h("p", { class: "small" }, "Deleted because the spool was full: ",
      dropped.join(", ")),
    found.findings.length > 0 && table("integrity problems", [
      { title: "Where", cell: (one) => `${one.place}:${one.line}` },
      { title: "Kind", cell: (one) => one.kind }, { title: "What", cell: (one) => one.text },
    ], found.findings));
}
