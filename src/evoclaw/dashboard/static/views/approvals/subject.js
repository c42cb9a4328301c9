// @ts-check
// What a call would do: its command, the change of a file as a diff, or its arguments.

import { h } from "../../dom.js";
import { fold } from "../../components.js";
import { highlighted } from "../../markdown/highlight.js";
import { argumentList, block, visible } from "./arguments.js";
import { diffLines, unifiedDiff } from "./diff.js";

const MAX_DIFF_LINES = 40, MAX_DIFF_CHARS = 4000; // of a diff that are shown at first

/** @typedef {{ tool: string, arguments: Record<string, *>, machine?: string }} Call */

/**
 * The sentence at the top of a card, as the terminal writes it too.
 * @param {Call} call
 */
export const headline = ({ tool, machine }) => [h("code", null, visible(tool)),
  machine ? [" on ", h("strong", null, visible(machine))] : null, " wants to run"];

/**
 * The tool and its arguments; of a call on an edge, those of the tool there; then the others.
 * @param {Call} call
 * @returns {[string, Record<string, *>, Record<string, *>]}
 */
function innermost({ tool, arguments: given }) {
  const { action, params, ...others } = given;
  const inner = tool === "edge_call" && typeof action === "string"
    && params && typeof params === "object" && !Array.isArray(params);
  return inner ? [action, params, others] : [tool, given, {}];
}

/**
 * What a call changes in a file: the texts that it is made of, the diff, and their arguments.
 * @param {string} tool
 * @param {Record<string, *>} given
 * @returns {{ raw: string, text: string, names: string[] }|null}
 */
function changeOf(tool, given) {
  const { old_string: before, new_string: after, content, patch } = given;
  if (tool === "edit" && typeof before === "string" && typeof after === "string") {
    return { raw: `${before}\n${after}`, names: ["old_string", "new_string"],
      text: unifiedDiff(visible(before), visible(after)).join("\n") };
  }
  if (tool === "write" && typeof content === "string") {
    const lines = visible(content).replace(/\n$/, "").split("\n");
    return { raw: content, names: ["content"],
      text: content ? lines.map((line) => `+${line}`).join("\n") : "" };
  }
  return tool === "apply_patch" && typeof patch === "string"
    ? { raw: patch, names: ["patch"], text: visible(patch) } : null;
}

/**
 * The command, the diff or the arguments of a call. All of its arguments can be opened.
 * @param {Call} call
 */
export function subject(call) {
  const [tool, given, others] = innermost(call);
  const change = changeOf(tool, given);
  const isCommand = !change && typeof given.command === "string";
  if (!change && !isCommand) return argumentList(call.arguments);
  const shown = change
    ? block("the change, as a diff", change.raw, { text: change.text, draw: diffLines,
      lines: MAX_DIFF_LINES, chars: MAX_DIFF_CHARS })
    : block("the command", given.command, { draw: (text) => highlighted(text, "bash") });
  const names = new Set(change ? change.names : ["command"]);
  const path = change && typeof given.path === "string" ? given.path : null;
  if (path !== null) names.add("path");
  const rest = Object.entries({ ...others, ...given }).filter(([name]) => !names.has(name));
  return h("div", { class: "subject" },
    path !== null && h("p", { class: "mono" }, h("strong", null, visible(path))),
    shown, rest.length > 0 && argumentList(Object.fromEntries(rest)),
    h("div", { class: "small" },
      fold("All arguments, exactly as sent", () => argumentList(call.arguments))));
}
