// @ts-check
// The boxes of a timeline: one for each turn and call, with labels and neighbours.

import { duration, some } from "../../format.js";
import { outcome, until } from "./model.js";
import { callLabel, onMachine, OUTCOMES, turnLabel } from "./labels.js";

/**
 * The box of a turn or call between two times, in pixels by the scale.
 * @param {Selected["kind"]} kind @param {{place: number, first: number}} thing
 * @param {Box["row"]} row @param {number} from @param {number} to @param {number} scale
 * @returns {Box}
 */
export function boxOf(kind, thing, row, from, to, scale) {
  const what = { kind, place: thing.place };
  const order = kind === "turn" ? thing.first * 2 : thing.first * 2 + 1 + thing.place * 1e-6;
  return { key: `${kind}${thing.place}`, what, row, from, to, left: from * scale,
    right: to * scale, order };
}

/**
 * The classes, the accessible label and the text of a box.
 * @param {RunModel} run @param {GatheredBox} box
 */
export function boxWords(run, box) {
  if (box.many.length > 1) return gatheredWords(box, run);
  const { kind, place } = box.what;
  if (kind === "turn") {
    const turn = run.turns[place], open = turn.repliedAt === null && !run.finished;
    const state = turn.failed ? "failed" : open ? "live" : "";
    return [`tl-band ${state}`, turnLabel(turn, run), `turn ${turn.number}`];
  }
  const call = run.calls[place], how = outcome(call, run);
  const took = call.endedAt !== null && call.startedAt !== null
    ? ` ${duration(call.endedAt - call.startedAt)}` : "";
  const asked = call.verdict === "ask" && call.startedAt !== null ? " asked" : "";
  return [`tl-bar ${how}${box.small ? " small" : ""}${asked}`, callLabel(call, run),
    `${OUTCOMES[how][1]} ${call.name}${onMachine(call)}${took}`];
}

/** @param {GatheredBox} box @param {RunModel} run */
function gatheredWords(box, run) {
  if (box.row === "band") {
    const [a, b] = [box.many[0], box.many[box.many.length - 1]]
      .map((one) => run.turns[one.what.place].number);
    return ["tl-band many", `turns ${a} to ${b}, too short to show separately: zoom in`, ""];
  }
  const label = `${some(box.many.length, "call")}, ${failures(run, box)} of them failed or denied`;
  return ["tl-bar many", `${label}: zoom in`, ""];
}

/** @param {RunModel} run @param {GatheredBox} options */
const failures = (run, { many }) =>
  many.filter((one) => run.calls[one.what.place].result?.error).length;

/**
 * The highlighted share of a box: of a turn the time before the first token, of a call the time
 * that it waited for a person, of several calls the failed ones.
 * @param {RunModel} run @param {GatheredBox} box @param {number} scale
 */
export function boxShare(run, box, scale) {
  if (box.row === "band") return part(thought(run, box, scale), box);
  if (box.many.length > 1) {
    return `${((100 * failures(run, box)) / box.many.length).toFixed(0)}%`;
  }
  const call = run.calls[box.what.place];
  if (call.verdict !== "ask" || call.startedAt === null) return "";
  return part((call.startedAt - run.origin) * scale, box);
}

/** @param {RunModel} run @param {Box} options @param {number} scale */
function thought(run, { what, right }, scale) {
  const { firstAt, repliedAt, endedAt } = run.turns[what.place];
  const first = firstAt ?? repliedAt ?? endedAt;
  return first === null ? right : (first - run.origin) * scale;
}

/** @param {number} at @param {Box} options */
const part = (at, { left, right }) =>
  `${(100 * Math.min(1, Math.max(0, (at - left) / (right - left)))).toFixed(1)}%`;

/**
 * The first turn that has not ended before a time (seconds from the start).
 * @param {RunModel} run @param {number} from @param {number} now
 */
export function firstInSight(run, from, now) {
  let low = 0, high = run.turns.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (until(run.turns[middle], now) - run.origin < from) low = middle + 1; else high = middle;
  }
  return low;
}

/**
 * Whether two selections are the same.
 * @param {Selected|null} a @param {Selected|null} b
 */
export const same = (a, b) => Boolean(a && b && a.kind === b.kind && a.place === b.place);

/**
 * The item `by` steps after the selected one, in the order of turns and their calls.
 * @param {RunModel|null} run @param {Selected|null} selected @param {number} by
 * @returns {Selected|null}
 */
export function neighbour(run, selected, by) {
  if (!run || !run.turns.length) return null;
  const last = run.turns[run.turns.length - 1];
  if (by === -Infinity || !selected) return { kind: "turn", place: 0 };
  if (by === Infinity) {
    return lastOf(last);
  }
  const turnPlace = selected.kind === "turn" ? selected.place : run.calls[selected.place]?.turn;
  const turn = run.turns[turnPlace];
  if (!turn) return { kind: "turn", place: 0 };
  const at = (selected.kind === "turn" ? -1 : turn.calls.indexOf(selected.place)) + by;
  if (at === -1) return { kind: "turn", place: turn.place };
  if (at >= 0 && at < turn.calls.length) return { kind: "call", place: turn.calls[at] };
  const other = run.turns[turn.place + (at < 0 ? -1 : 1)];
  if (!other) return null;
  return at < 0 ? lastOf(other) : { kind: "turn", place: other.place };
}

/**
 * The last call of a turn, or the turn itself if it has none.
 * @param {Turn} turn @returns {Selected}
 */
function lastOf({ calls, place }) {
  return calls.length ? { kind: "call", place: calls[calls.length - 1] } : { kind: "turn", place };
}
