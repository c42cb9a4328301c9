// @ts-check
// The lineage of a genome as a tree: a node for each content, after the one that it was made from.
// The line of versions that leads on stays at one level; the others are indented.

import { h, oneLine } from "../../dom.js";
import { may } from "../../live.js";
import { badge, button, fold, when } from "../../components.js";
import { candidateBadge, evolutionLink, isTrial, runLinks, scoreText, versionName }
  from "./facts.js";

const MAX_CANDIDATES = 10; // of a node that are shown at first

/**
 * @typedef {object} Node
 * @property {string} digest
 * @property {Api.LineageEntry[]} versions with this content, the oldest first
 * @property {Api.CandidateView|null} candidate that was proposed first with this content
 * @property {Node[]} children
 */

/**
 * The lineage as nested lists.
 * @param {import("./agent.js").Evolution} found @param {(version: number) => unknown} rollBack
 */
export function lineageTree(found, rollBack) {
  const root = treeOf(found);
  const current = found.entries.findLast((entry) => entry.version)?.version || 0;
  const mayRollBack = may("evolution:write") && may("human");
  /** A node, and those that lead on from it. @param {Node|undefined} node @returns {Child[]} */
  const branch = (node) => {
    /** @type {Child[]} */
    const items = [];
    for (let at = node; at;) {
      const next = at.children.findLast((one) => one.versions.length);
      items.push(h("li", null, described(at, found, current, mayRollBack ? rollBack : null),
        below(at.children.filter((one) => one !== next), branch)));
      at = next;
    }
    return items;
  };
  return h("ul", { class: "lineage", "aria-label": `Lineage of ${found.agent}` }, branch(root));
}

/** @param {import("./agent.js").Evolution} found */
function treeOf({ entries, candidates }) {
  /** @type {Node} */
  const root = { digest: "", versions: [], candidate: null, children: [] };
  const nodes = new Map([["", root]]);
  const proposed = new Map(candidates.map((one) => [one.number, one]));
  for (const entry of entries) {
    if (!entry.version && entry.kind !== "proposal") continue;
    let node = nodes.get(entry.digest);
    if (!node) {
      node = { digest: entry.digest, versions: [], candidate: null, children: [] };
      nodes.set(entry.digest, node);
      (nodes.get(entry.parent || "") || root).children.push(node);
    }
    if (entry.version) node.versions.push(entry);
    else node.candidate = proposed.get(entry.number) || node.candidate;
  }
  return root;
}

/** @param {Node[]} children @param {(node: Node) => Child[]} branch */
function below(children, branch) {
  if (!children.length) return null;
  const versions = children.filter((one) => one.versions.length);
  const others = children.filter((one) => !one.versions.length).reverse();
  const shown = others.slice(0, MAX_CANDIDATES), rest = others.slice(MAX_CANDIDATES);
  return [h("ul", null, versions.map(branch), shown.map(branch)),
    rest.length > 0 && fold(`${rest.length} older candidates`, () => h("ul", null,
      rest.map(branch)))];
}

/**
 * @param {Node} node @param {import("./agent.js").Evolution} found @param {number} current
 * @param {((version: number) => unknown)|null} rollBack
 */
function described(node, found, current, rollBack) {
  const last = node.versions.at(-1), first = node.versions[0];
  const isVersion = node.versions.length > 0 || !node.digest;
  const numbers = node.versions.map((entry) => entry.version || 0);
  const isCurrent = current === 0 ? !node.digest : numbers.includes(current);
  const restored = node.versions.filter((entry) => entry.kind === "rollback");
  const result = found.results.findLast((one) => one.digest === node.digest
    && !isTrial(one));
  const wanted = first?.version || 0; // the first version with this content
  const { candidate } = node;
  return h("div", { class: "lineage-node" },
    h("div", { class: "row" },
      isVersion ? h("strong", null, nameOf(node, numbers)) : h("strong", null,
        h("a", { href: evolutionLink(found.agent, candidate?.number) },
          `Candidate ${candidate?.number}`)),
      isCurrent && badge("good", "current"),
      candidate && isVersion && h("a", { href: evolutionLink(found.agent, candidate.number) },
        `candidate ${candidate.number}`),
      candidate && candidateBadge(candidate),
      result && h("span", { class: "small" }, `passed: ${scoreText(result)}`),
      isVersion && !isCurrent && rollBack && button("Roll back to it…", () => rollBack(wanted),
        { label: `Roll back to ${versionName(wanted)}` })),
    restored.map((entry) => h("p", { class: "small soft" },
      `Rolled back to it as version ${entry.version}, `, when(entry.at), ` by ${entry.by}`,
      entry.reason && `: ${oneLine(entry.reason, 200)}`)),
    origin(last && first?.kind === "change" ? first : null, candidate));
}

/** @param {Node} node @param {number[]} numbers */
function nameOf(node, numbers) {
  if (!node.digest) return "Configuration (version 0)";
  return numbers.length > 1 ? `Version ${numbers.join(", ")}` : `Version ${numbers[0]}`;
}

/** @param {Api.LineageEntry|null} change @param {Api.CandidateView|null} candidate */
function origin(change, candidate) {
  const from = change || candidate;
  if (!from) return null;
  const runs = from.runs || [];
  return h("p", { class: "small soft" }, when(from.at), ` by ${from.by}`,
    from.reason && `: ${oneLine(from.reason, 200)}`,
    runs.length > 0 && [" (runs ", runLinks(runs), ")"]);
}
