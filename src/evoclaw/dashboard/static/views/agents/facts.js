// @ts-check
// What an agent is, in words.

import { h } from "../../dom.js";
import { duration, some } from "../../format.js";

/** @param {string} name */
export const agentLink = (name) => `#/agents/${encodeURIComponent(name)}`;

/** Where an agent's tools run, in words. @param {any} agent */
export function machineOf({ on: edge }) {
  if (!edge) return "chosen by the session";
  return { any: "any with the tool", "*": "named per call" }[/** @type {string} */ (edge)] || edge;
}

/** What an agent may use, in words. @param {any} agent */
export function toolsOf({ tools, capabilities }) {
  if (!capabilities.length) return "none";
  if (tools) return tools.join(", ") || "none";
  return capabilities.includes("*") ? "all" : `all that need only ${capabilities.join(", ")}`;
}

/** The limits of an agent's runs, in words. @param {any} agent */
export function limitsOf({ max_turns: turns, max_seconds: seconds, budget }) {
  const spent = Object.entries(budget || {}).map(([kind, most]) => `${most} ${kind}`);
  return [some(turns, "turn"), duration(seconds), ...spent].join(", ");
}

/** The workflows that use an agent, with their schedules. @param {any[]} flows */
export function flowLinks(flows) {
  return flows.map((flow, index) => [index > 0 && ", ",
    h("a", { href: `#/workflows/${encodeURIComponent(flow.name)}` }, flow.name),
    flow.schedule && ` (${flow.schedule.cron || `every ${duration(flow.schedule.every_s)}`})`]);
}

/** The text of a new agent. @param {string} name */
export const agentTemplate = (name) => `[[agents]]
id = "${name}"
description = ""                  # what it is for, in one line
prompt = ""                       # its own instructions
capabilities = ["file_read"]      # the permissions it holds; "*" is all
autonomy = "supervised"           # or "read_only", "full"
# model = "anthropic/claude-sonnet-5-5"   # without it, the default model

[agents.limits]
max_turns = 10
`;
