// @ts-check
// Policies: the rules that judge tool calls, and the explanation of a verdict.

import { get, post } from "../../api.js";
import { h, lookup, oneLine, replace, setText } from "../../dom.js";
import { may } from "../../live.js";
import { badge, button, empty, failed, field, fold, jsonBlock, load, missingScope, select, table,
  verdictBadge } from "../../components.js";
import { argumentForm } from "./arguments.js";

const LEVELS = lookup({ read_only: "may only read", supervised: "asks before it writes",
  full: "acts without asking, within the policies" });

/**
 * Show the rules, and explain a call.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function showPolicy(place, signal) {
  if (!may("tools:read")) {
    return replace(place, missingScope("see policies", "tools:read"));
  }
  const explain = h("section", { class: "card settings-make" }), rules = h("section");
  replace(place, explain, rules);
  load(explain, () => Promise.all([get("/v1/tools", null, { signal }), agents(signal)]),
    ([{ items }, names]) => explainForm(items, names, signal), signal);
  return load(rules, () => get("/v1/policy", null, { signal }), policyShown, signal);
}

/** @param {AbortSignal} signal */
async function agents(signal) {
  return may("agents:invoke")
    ? (await get("/v1/agents", null, { signal })).agents.map((one) => one.name) : [];
}

/** @param {Api.PolicyView} options */
function policyShown({ level, presets, rules, settings }) {
  const list = h("div"), shown = h("span", { class: "soft small", role: "status" });
  const search = h("input", { type: "search", "aria-label": "Search rules",
    placeholder: "Search by name, verdict or description", on: { input: () => draw() } });
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fit = rules.filter((rule) => words.every((word) =>
      Object.values(rule).join(" ").toLowerCase().includes(word)));
    setText(shown, `${fit.length} of ${rules.length} shown`);
    replace(list, fit.length ? table("rules", RULES, fit) : empty("No rule matches the search."));
  };
  draw();
  return [
    h("h2", null, "In force"),
    h("div", { class: "row" }, h("span", null, "The default agent ",
      badge("busy", level), " ", h("span", { class: "soft" }, LEVELS[level] || "")),
    presets.length > 0 && h("span", { class: "soft small" },
      `Information-flow presets: ${presets.join(", ")}`)),
    settingsShown(settings),
    h("div", { class: "row between" }, h("h2", null, `Rules (${rules.length})`), shown),
    h("div", { class: "rule-search" }, search), list];
}

/** @type {Column<Api.RuleView>[]} */
const RULES = [
  { title: "Rule", main: true, cell: (rule) => h("code", null, rule.name) },
  { title: "Verdict", cell: (rule) => verdictBadge(rule.verdict) },
  { title: "About", wide: true, cell: (rule) => rule.summary },
  { title: "From", cell: (rule) => rule.source },
];

/** @param {Api.JsonObject<any>} [settings] */
function settingsShown(settings) {
  const pairs = Object.entries(settings || {});
  return pairs.length > 0 && fold(`Settings (${pairs.length})`, () => h("dl", { class: "facts" },
    pairs.map(([name, value]) => [h("dt", null, h("code", null, name)),
      h("dd", null, value !== null && typeof value === "object" ? jsonBlock(value, name)
        : String(value))])));
}

/** @param {Api.ToolView[]} tools @param {string[]} names @param {AbortSignal} signal */
function explainForm(tools, names, signal) {
  const sorted = [...tools].sort((a, b) => (a.name < b.name ? -1 : 1));
  const first = sorted.find((tool) => tool.name === "bash") || sorted[0];
  if (!first) return empty("No tools are available.");
  const about = h("p", { class: "soft small" }), place = h("div");
  const answer = h("div", { "aria-live": "polite", class: "explained" });
  let values = () => ({});
  /** @param {string} name */
  const choose = (name) => {
    const tool = sorted.find((one) => one.name === name) || first;
    setText(about, oneLine(tool.description, 200));
    const made = argumentForm(tool.parameters);
    values = made.values;
    replace(place, made.element);
    replace(answer);
  };
  const tool = select(sorted.map((one) => one.name), first.name, choose);
  const agent = select([["", "the default agent"], ...names], "");
  const level = select([["", "the agent's own"], ...Object.keys(LEVELS)], "");
  choose(first.name);
  const ask = async () => {
    try {
      const body = { tool: tool.value, arguments: values(), agent: agent.value,
        level: level.value };
      replace(answer, answerShown(await post("/v1/policy/explain", body, { signal })));
    } catch (cause) {
      if (cause.name !== "AbortError") replace(answer, failed(cause));
    }
  };
  return [h("h2", null, "Explain the verdict on a call"),
    h("p", { class: "soft" }, "Nothing is run or recorded."),
    h("div", { class: "settings-form" }, field("Tool", tool), field("Called by", agent),
      field("Autonomy", level)), about, place,
    h("div", { class: "row" }, button("Explain", ask, { tone: "primary" })), answer];
}

const SAYS = lookup({ allow: "It would run.", deny: "It would be denied.",
  ask: "A person would be asked." });

/**
 * The verdict of one policy.
 * @param {Api.PolicyStepView} step
 */
function stepShown(step) {
  return h("li", null, h("code", null, step.policy), h("span", null, verdictBadge(step.verdict)),
    h("span", null, step.reason, " ", step.code && h("code", { class: "soft" }, step.code)));
}

/** @param {Api.PolicyAnswer} found */
function answerShown(found) {
  const effects = Object.keys(found.effects || {}).length > 0;
  return h("section", null,
    h("p", { class: "verdict" }, verdictBadge(found.verdict), " ",
      h("strong", null, SAYS[found.verdict] || ""), " ", found.reason),
    h("dl", { class: "facts small" },
      h("dt", null, "decided by"), h("dd", null, found.by || "no policy objects"),
      found.code && [h("dt", null, "code"), h("dd", null, h("code", null, found.code))],
      found.reason_for_model && [h("dt", null, "shown to the model"),
        h("dd", null, found.reason_for_model)]),
    h("h3", null, "Step by step"),
    found.steps.length ? h("ol", { class: "steps" }, found.steps.map(stepShown))
      : h("p", { class: "soft" }, "No policy was asked."),
    effects && fold("Effects of the call, as far as known",
      () => jsonBlock(found.effects, "effects")));
}
