// @ts-check
// Tools and skills, with usage and failure rates.

import { get } from "../../api.js";
import { h, lookup, oneLine, replace } from "../../dom.js";
import { count, duration, millis, percent } from "../../format.js";
import { may } from "../../live.js";
import { badge, empty, facts, failed, field, fold, jsonBlock, load, select, table }
  from "../../components.js";

export const title = "Tools & skills";

const EFFECTS = lookup({ read: "quiet", write: "warn", execute: "bad" });

/**
 * Show the tools with their usage of the last days, then the skills.
 * @param {HTMLElement} root @param {string[]} args @param {AbortSignal} signal
 */
export async function mount(root, args, signal) {
  if (args.length) return one(root, args[0], signal);
  const tools = h("section", { "aria-label": "Tools" });
  const skills = h("section", { "aria-label": "Skills" });
  replace(root, tools, h("h2", null, "Skills"), skills);
  await Promise.all([
    load(tools, () => toolsAndUse(signal), (found) => toolList(found), signal),
    load(skills, () => get("/v1/skills", null, { signal }), skillList, signal),
  ]);
}

/** @param {AbortSignal} signal */
async function toolsAndUse(signal) {
  const [tools, use] = await Promise.all([get("/v1/tools", null, { signal }), usage(signal)]);
  return { ...tools, use };
}

/**
 * The metrics of the last week by tool; empty if the token cannot see runs.
 * @param {AbortSignal} signal
 */
async function usage(signal) {
  if (!may("runs:read")) return new Map();
  const since = Date.now() / 1000 - 7 * 86_400;
  const found = await get("/v1/figures", { since: Math.floor(since) }, { signal });
  return new Map(found.tools.map((one) => [one.tool, one]));
}

/** @param {Api.ToolList & {use: Map<string, Api.ToolSummary>}} options */
function toolList({ items, absent, problems = [], use }) {
  const place = h("div");
  const search = h("input", { type: "search", placeholder: "Name or description" });
  const effect = select([["", "any effect"], ...new Set(items.map((tool) => tool.effect))]);
  const draw = () => {
    const wanted = search.value.toLowerCase();
    const fitting = items.filter((tool) => (!effect.value || tool.effect === effect.value)
      && `${tool.name} ${tool.description}`.toLowerCase().includes(wanted));
    replace(place, fitting.length ? table("tools", columns(use), fitting)
      : empty("No tool matches the search."));
  };
  search.addEventListener("input", draw);
  effect.addEventListener("change", draw);
  draw();
  return [
    h("div", { class: "row filters" }, field("Search", search), field("Effect", effect)), place,
    absent.length > 0 && fold(`${absent.length} tools are unavailable`, () =>
      table("unavailable tools", [{ title: "Tool", cell: (tool) => tool.name },
        { title: "Why", cell: (tool) => tool.why }], absent)),
    problems.length > 0 && fold(`${problems.length} custom tools or servers are unavailable`, () =>
      table("problems", [{ title: "Name", cell: (problem) => problem.name },
        { title: "Why", cell: (problem) => problem.why }], problems)),
  ];
}

/** @param {number|null} [ms] */
const took = (ms) => (ms === undefined ? "–" : millis(ms));

/**
 * @param {Map<string, Api.ToolSummary>} use
 * @returns {Column<Api.ToolView>[]}
 */
function columns(use) {
  /** @param {Api.ToolView} tool */
  const of = (tool) => use.get(tool.name);
  return [
    { title: "Tool", main: true, cell: (tool) => [
      h("a", { href: `#/tools/${encodeURIComponent(tool.name)}`, class: "mono" }, tool.name),
      h("div", { class: "small soft" }, oneLine(tool.description, 110))] },
    { title: "Effect", cell: (tool) => badge(EFFECTS[tool.effect] || "quiet", tool.effect) },
    { title: "Calls, 7 days", number: true, cell: (tool) => count(of(tool)?.calls || 0) },
    { title: "Failed", number: true, cell: (tool) => failures(of(tool)) },
    { title: "p50", number: true, cell: (tool) => took(of(tool)?.p50_ms) },
    { title: "p95", number: true, cell: (tool) => took(of(tool)?.p95_ms) },
  ];
}

/** @param {Api.ToolSummary} [use] */
const failures = (use) => (use?.calls ? percent(1 - use.success_rate) : "–");

/** @param {Api.SkillList} options */
function skillList({ items, problems }) {
  if (!items.length && !problems.length) {
    return empty("No skills yet. Create one with `evoclaw skills new`.");
  }
  return [
    h("div", { class: "grid-cards" }, items.map(skillCard)),
    problems.length > 0 && table("unavailable skills", [
      { title: "Where", cell: (one) => one.path },
      { title: "Why", cell: (one) => [one.refused && badge("bad", "refused"), " ", one.reason] },
    ], problems),
  ];
}

/** @param {string} kind @param {string} label @param {string[]|null} [names] */
const listed = (kind, label, names) =>
  Boolean(names?.length) && h("p", { class: kind }, label, names?.join(", "));

/** @param {Api.SkillView} skill */
function skillCard(skill) {
  return h("article", { class: "card" },
    h("div", { class: "row between" }, h("h3", null, `${skill.name} ${skill.version}`),
      skill.approved ? badge("good", "pinned") : badge("warn", "not pinned")),
    h("p", null, skill.description),
    listed("small", "Tools: ", skill.tools),
    listed("small soft", "Works with: ", skill.allowed_tools),
    listed("small soft", "Never uses: ", skill.disallowed_tools),
    fold("Instructions", () => {
      const place = h("div");
      load(place, () => get(`/v1/skills/${encodeURIComponent(skill.name)}`), (found) =>
        h("pre", { class: "text", tabindex: "0" }, found.instructions || "none"));
      return place;
    }),
    h("p", { class: "small soft mono" }, skill.digest.slice(0, 23)));
}

/** @param {HTMLElement} root @param {string} name @param {AbortSignal} signal */
async function one(root, name, signal) {
  try {
    const [tool, use] = await Promise.all([
      get(`/v1/tools/${encodeURIComponent(name)}`, null, { signal }), usage(signal)]);
    replace(root, h("p", { class: "back" }, h("a", { href: "#/tools" }, "← All tools")),
      detail(tool, use.get(name)));
  } catch (cause) {
    replace(root, failed(cause, () => one(root, name, signal)));
  }
}

/** @param {Api.ToolView} tool @param {Api.ToolSummary} [use] */
function detail(tool, use) {
  const about = [
    ["Effect", badge(EFFECTS[tool.effect] || "quiet", tool.effect)],
    ["Permissions", tool.permissions.join(", ") || "none"],
    ["Timeout", `${duration(tool.timeout)}, at most ${duration(tool.max_timeout)}`],
    ["Idempotent", tool.idempotent ? "yes" : "no"], ["Version", tool.version],
  ];
  return [
    h("article", { class: "card" }, h("h2", { class: "mono" }, tool.name),
      h("p", { class: "lines" }, tool.description),
      facts(about)),
    h("article", { class: "card" }, h("h2", null, "Use in the last 7 days"), use ? useTable(use)
      : h("p", { class: "soft" }, "Not used.")),
    h("article", { class: "card" }, h("h2", null, "Argument schema"),
      jsonBlock(tool.parameters, "schema")),
  ];
}

/** @param {Api.ToolSummary} use */
function useTable(use) {
  const errors = Object.entries(use.errors).map(([kind, number]) => `${kind}: ${number}`);
  const rows = [
    ["Calls", count(use.calls)], ["Succeeded", percent(use.success_rate)],
    ["Average", millis(use.avg_ms)], ["p50", millis(use.p50_ms)], ["p95", millis(use.p95_ms)],
    ["Errors", errors.join(", ") || "none"],
  ];
  return facts(rows);
}
