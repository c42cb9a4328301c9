// @ts-check
// Where a workflow is, and when it starts, in words.

import { h } from "../../dom.js";
import { duration } from "../../format.js";
import { badge, when } from "../../components.js";

/** @type {{[state: string]: string}} */
const TONES = { queued: "quiet", pending: "quiet", running: "busy", waiting: "warn",
  unknown: "warn", succeeded: "good", failed: "bad", cancelled: "quiet", skipped: "quiet" };

/** The state of a workflow run or a step. @param {string} state */
export const stateBadge = (state) => badge(TONES[state] || "quiet", state);

/** @param {string} name @param {string} [run] */
export const flowLink = (name, run) =>
  ["#/workflows", name, run].filter(Boolean).map((part, index) =>
    (index ? encodeURIComponent(/** @type {string} */ (part)) : part)).join("/");

/** When a workflow starts by itself, in words. @param {any} flow */
export function scheduleText({ schedule, next_at: next }) {
  if (!schedule) return "manual";
  const rule = schedule.cron ? `${schedule.cron} (${schedule.timezone || "UTC"})`
    : `every ${duration(schedule.every_s)}`;
  if (schedule.enabled === false) return `${rule}, disabled`;
  return h("span", null, rule, next && [", next ", when(next)]);
}
