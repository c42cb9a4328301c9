// @ts-check
// One candidate: what it changes, why, what the gate has said, and a person's decision.

import { get, post } from "../../api.js";
import { h, replace } from "../../dom.js";
import { may } from "../../live.js";
import { badge, button, confirmed, empty, facts, fold, jsonBlock, toast, when }
  from "../../components.js";
import { refreshing } from "../../refresh.js";
import { diffLines, unifiedDiff } from "../approvals/diff.js";
import { STAGES, candidateBadge, evolutionLink, runLinks, validationText, versionName }
  from "./facts.js";

/**
 * Show a candidate.
 * @param {HTMLElement} root @param {string} agent @param {string} number
 * @param {AbortSignal} signal
 */
export async function showCandidate(root, agent, number, signal) {
  const place = h("section", { class: "evolution" });
  const path = `/v1/agents/${encodeURIComponent(agent)}/candidates/${encodeURIComponent(number)}`;
  replace(root, h("p", { class: "back" },
    h("a", { href: evolutionLink(agent) }, `← Evolution of ${agent}`)), place);
  const work = () => get(path, null, { signal });
  /** @param {Api.CandidateDetail} found */
  const shown = (found) => page(agent, found, path, reload);
  const reload = async () => {
    const found = await work();
    if (!signal.aborted) replace(place, shown(found));
  };
  await refreshing(place, work, shown, signal);
}

/**
 * @param {string} agent @param {Api.CandidateDetail} found @param {string} path
 * @param {() => Promise<void>} reload
 */
function page(agent, found, path, reload) {
  const { candidate } = found, { runs } = candidate;
  return [
    h("section", { class: "card" },
      h("div", { class: "row" }, h("h2", null, `Candidate ${candidate.number} of ${agent}`),
        candidateBadge(candidate),
        candidate.untrusted && badge("warn", "contains untrusted text")),
      facts([["proposed", [when(candidate.at), ` by ${candidate.by}`]],
        ["reason", candidate.reason],
        ["runs", runs.length ? h("span", null, runLinks(runs)) : ""],
        ["better on", candidate.fixed.join(", ")],
        ["worse on", candidate.broken.join(", ")],
        ["replaces", versionName(candidate.parent_version)],
        ["validation", validationText(candidate)],
        ["became", candidate.version === null ? "" : versionName(candidate.version)]]),
      decision(found, path, reload)),
    h("section", { class: "card" }, h("h3", null, "What it changes"), changes(found)),
    h("section", { class: "card" }, h("h3", null, "The gate"),
      h("ol", { class: "stages" }, STAGES.map(([name, about]) => stage(name, about, candidate)))),
  ];
}

/** @param {Api.CandidateDetail} found @param {string} path @param {() => Promise<void>} reload */
function decision({ candidate, last }, path, reload) {
  if (candidate.state !== "open") return null;
  if (!may("evolution:write") || !may("human")) {
    return h("p", { class: "soft small" }, "Only a person may decide: the token needs the scopes "
      + "'evolution:write' and 'human'.");
  }
  const { number } = candidate;
  /** @param {"approve"|"reject"} decided @param {string} reason */
  const send = async (decided, reason) => {
    try {
      await post(`${path}/decision`, { decision: decided, reason, after: last });
      toast(`Candidate ${number}: ${decided === "approve" ? "approved" : "rejected"}`);
    } finally {
      await reload(); // also if another entry came first: this shows it
    }
  };
  return h("div", { class: "row" },
    candidate.stage === "approval" && button("Approve…", async () => {
      const reason = await confirmed(`Approve candidate ${number}?`, "It continues with the shadow "
        + "and canary stages, and becomes the current genome if no bound breaks there.",
      { action: "Approve", ask: "Reason (optional)", tone: "primary" });
      if (reason !== null) await send("approve", reason);
    }, { tone: "primary" }),
    button("Reject…", async () => {
      const reason = await confirmed(`Reject candidate ${number}?`,
        "It ends here. The reason stays in the lineage.", { action: "Reject", ask: "Reason" });
      if (reason === null) return;
      if (!reason.trim()) throw new Error("A rejection needs a reason.");
      await send("reject", reason);
    }, { tone: "danger" }));
}

/** @param {string} name @param {string} about @param {Api.CandidateView} candidate */
function stage(name, about, candidate) {
  const found = candidate.stages.find((one) => one.stage === name);
  const evidence = Object.keys(found?.evidence || {}).length > 0;
  return h("li", { "aria-label": `stage ${name}` },
    h("div", { class: "row" }, h("strong", null, name), verdict(found, candidate.stage === name),
      found && h("span", { class: "soft small" }, when(found.at), ` by ${found.by}`)),
    h("p", { class: "small soft" }, about),
    found?.reason && h("p", null, found.reason),
    found && evidence && fold("Evidence", () => jsonBlock(found.evidence, `evidence of ${name}`)));
}

/** @param {Api.StageView|undefined} found @param {boolean} isHere */
function verdict(found, isHere) {
  if (found?.passed) return badge("good", "passed");
  if (found?.passed === false) return badge("bad", "failed");
  if (found) return badge("busy", "in progress");
  return isHere ? badge("warn", "waiting") : badge("quiet", "not reached");
}

/** @param {Api.CandidateDetail} found */
function changes({ before, genome }) {
  const keys = [...new Set([...Object.keys(before), ...Object.keys(genome)])];
  const differing = keys.flatMap((key) => compared(key, before[key], genome[key]));
  if (!differing.length) return empty("It changes nothing.");
  return differing.map(([key, old, now]) => h("div", { class: "genome-change" },
    h("h4", { class: "mono" }, key), change(key, old, now)));
}

/**
 * The texts that differ below a key; objects are compared by their keys.
 * @param {string} key @param {any} old @param {any} now @returns {[string, any, any][]}
 */
function compared(key, old, now) {
  if (JSON.stringify(old) === JSON.stringify(now)) return [];
  if (isObject(old ?? now) && isObject(now ?? old)) {
    const names = new Set([...Object.keys(old || {}), ...Object.keys(now || {})]);
    return [...names].flatMap((name) => compared(`${key}.${name}`, old?.[name], now?.[name]));
  }
  return [[key, old, now]];
}

/** @param {any} value */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {string} key @param {any} old @param {any} now */
function change(key, old, now) {
  const before = plain(old), after = plain(now);
  if (old === undefined || now === undefined || before.length + after.length < 200) {
    return h("pre", { class: "text genome-diff", tabindex: "0", role: "region",
      "aria-label": `change of ${key}` }, diffLines([...marked("-", old, before),
      ...marked("+", now, after)].join("\n")));
  }
  return h("pre", { class: "text genome-diff", tabindex: "0", role: "region",
    "aria-label": `change of ${key}` }, diffLines(unifiedDiff(before, after).join("\n")));
}

/** @param {string} mark @param {any} value @param {string} text */
const marked = (mark, value, text) => (value === undefined ? [`${mark}(as configured)`]
  : text.split("\n").map((line) => mark + line));

/** A value as lines; one line for each item of a list. @param {any} value @returns {string} */
function plain(value) {
  if (value === undefined) return "";
  if (Array.isArray(value)) return value.map(plain).join("\n");
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
