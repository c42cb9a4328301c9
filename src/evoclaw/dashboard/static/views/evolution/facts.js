// @ts-check
// Genomes, candidates and scores, in words.

import { h } from "../../dom.js";
import { percent } from "../../format.js";
import { badge } from "../../components.js";

/** The stages of the gate in their order, with what each one asks. */
export const STAGES = [
  ["static", "It asks for nothing that the current genome does not have."],
  ["validation", "It is better on cases that no proposer has seen, and no case got worse."],
  ["safety", "Calls that must be denied are denied; instructions in results are not followed."],
  ["approval", "A person approves it, or a key that is not the proposer's signs it."],
  ["shadow", "Beside real sessions, it proposes calls that are not executed."],
  ["canary", "A share of the new sessions uses it."],
];

/** @type {{[state: string]: string[]}} */
const STATES = { open: ["busy", "open"], rejected: ["bad", "rejected"],
  passed: ["good", "passed"], promoted: ["good", "promoted"],
  rolled_back: ["warn", "rolled back"], superseded: ["quiet", "superseded"] };

/** Where a candidate is. @param {Api.CandidateView} candidate */
export function candidateBadge({ state, stage }) {
  if (stage === "approval") return badge("warn", "waits for a person");
  const [tone, text] = STATES[state] || ["quiet", state];
  return badge(tone, stage ? `at ${stage}` : text);
}

/** @type {{[state: string]: string}} */
const TONES = { running: "busy", completed: "good", failed: "bad", cancelled: "quiet",
  interrupted: "warn" };

/** Where an evaluation is. @param {string} state */
export const evaluationBadge = (state) => badge(TONES[state] || "quiet", state);

/** @param {string} agent @param {number} [candidate] */
export const evolutionLink = (agent, candidate) => `#/evolution/${encodeURIComponent(agent)}`
  + (candidate === undefined ? "" : `/${candidate}`);

/** @param {number} number */
export const versionName = (number) => (number ? `version ${number}` : "the configuration");

/** The genome of a result. @param {{version: number|null, candidate: number|null}} result */
export function genomeName({ version, candidate }) {
  if (version !== null) return versionName(version);
  return candidate === null ? "tried by a proposer" : `candidate ${candidate}`;
}

/** A rate with its interval. @param {Api.Rate} rate */
export const rateText = ({ rate, low, high }) =>
  `${percent(rate)} (${percent(low)} to ${percent(high)})`;

/**
 * Whether a proposer tried the genome, on some train cases: no score of a version or candidate.
 * @param {Api.EvaluationResult} result
 */
export const isTrial = ({ version, candidate }) => version === null && candidate === null;

/**
 * Which share of the calls a record answered; `executed` if there was no record.
 * @param {{coverage: number|null, recorded: number|null}} result
 */
export function coverageOf({ coverage, recorded }) {
  if (coverage !== null) return percent(coverage);
  return recorded ? "no call to answer" : "executed";
}

/**
 * A rate with its interval, and its coverage if there was a record.
 * @param {Api.EvaluationResult} result
 */
export const scoreText = ({ total, coverage, recorded }) =>
  coveredRate({ ...total, coverage, recorded });

/**
 * The same of a rate that has its coverage beside it; entries of older versions have none.
 * @param {Api.Rate & {coverage?: number|null, recorded?: number|null}} rate
 */
export function coveredRate(rate) {
  const covered = coverageOf({ coverage: rate.coverage ?? null, recorded: rate.recorded ?? null });
  return rateText(rate) + (covered === "executed" ? "" : `, coverage ${covered}`);
}

/**
 * What the validation stage measured, the current genome beside the candidate; empty if nothing.
 * @param {Api.CandidateView} candidate
 */
export function validationText({ stages }) {
  const evidence = stages.find(({ stage }) => stage === "validation")?.evidence || {};
  const { current, candidate } = evidence;
  if (typeof current?.rate !== "number" || typeof candidate?.rate !== "number") return "";
  return `${coveredRate(candidate)}, the current genome ${coveredRate(current)}`;
}

/** Links to runs. @param {string[]} runs */
export const runLinks = (runs) => runs.map((id, index) => [index > 0 && ", ",
  h("a", { href: `#/runs/${encodeURIComponent(id)}`, class: "mono" }, id)]);
