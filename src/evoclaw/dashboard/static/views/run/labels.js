// @ts-check
// The labels and symbols of a run, shared by its timeline, list and panel.

import { oneLine } from "../../dom.js";
import { duration, some } from "../../format.js";
import { outcome } from "./model.js";

/**
 * By outcome: tone, symbol and text.
 * @type {{[outcome: string]: [string, string, string]}}
 */
export const OUTCOMES = {
  ok: ["good", "✓", "succeeded"],
  failed: ["bad", "✕", "failed"],
  timeout: ["bad", "⧗", "timed out"],
  denied: ["bad", "⊘", "denied"],
  cancelled: ["quiet", "◌", "cancelled"],
  lost: ["quiet", "◌", "no result"],
  running: ["busy", "◐", "running"],
  waiting: ["warn", "▲", "waiting for a person"],
  queued: ["quiet", "○", "queued"],
};

/**
 * A short summary of a call: its command, its path, or its first argument.
 * @param {{arguments?: Api.JsonObject<any>|null, written?: string}} call
 */
export function gist(call, limit = 60) {
  const given = call.arguments || parsed(call.written);
  if (typeof given === "string") return oneLine(given, limit);
  if (typeof given.agent_id === "string" && typeof given.action === "string") { // one device
    const { agent_id: device, action, params } = given;
    return oneLine(`${action} on ${device}: ${mainArgument(params || {})}`, limit);
  }
  return oneLine(mainArgument(given), limit);
}

/**
 * The most descriptive argument of a call.
 * @param {Api.JsonObject<any>} given
 */
function mainArgument(given) {
  const first = ["command", "path", "pattern", "url", "query", "message", "tool"]
    .map((name) => given[name]).find((value) => typeof value === "string");
  return first ?? Object.values(given).find((one) => typeof one === "string") ?? "";
}

/**
 * Arguments as the model wrote them; the text itself if it is not JSON.
 * @param {string} [written]
 */
export function parsed(written) {
  if (!written) return {};
  try {
    const value = JSON.parse(written);
    return value && typeof value === "object" ? value : String(written);
  } catch {
    return String(written);
  }
}

/**
 * The machine of a call, to be put behind its name.
 * @param {{machine?: string}} options
 */
export const onMachine = ({ machine }) => (machine ? ` on ${oneLine(machine, 40)}` : "");

/**
 * The accessible label of a call.
 * @param {Call} call @param {RunModel} run
 */
export function callLabel(call, run) {
  const how = outcome(call, run);
  const turn = run.turns[call.turn];
  const took = call.startedAt !== null && call.endedAt !== null
    ? `, ${duration(call.endedAt - call.startedAt)}` : "";
  const kind = call.result?.error ? ` (${call.result.error})` : "";
  const name = `${call.name || "?"}${onMachine(call)}`;
  return `turn ${turn ? turn.number : "–"}, call ${name} ${OUTCOMES[how][2]}${kind}`
    + `${took}${gist(call) ? `: ${gist(call)}` : ""}`;
}

/**
 * The state of a turn.
 * @param {Turn} turn @param {RunModel} run
 */
export function turnState(turn, run) {
  if (turn.failed) return "no reply";
  if (turn.repliedAt === null) {
    if (run.finished || turn.endedAt !== null) return "interrupted";
    return turn.firstAt === null ? "the model is thinking" : "the model is writing";
  }
  return turn.endedAt === null ? "calls are running" : "ended";
}

/**
 * The accessible label of a turn.
 * @param {Turn} turn @param {RunModel} run
 */
export function turnLabel(turn, run) {
  const took = turn.repliedAt === null ? turnState(turn, run)
    : `reply after ${duration(turn.repliedAt - turn.startedAt)}`;
  const again = turn.retries.length ? `, ${some(turn.retries.length, "retry", "retries")}` : "";
  return `turn ${turn.number}: ${took}${again}, ${some(turn.calls.length, "call")}`;
}

/** @type {{[Type in Api.Record["event"]["type"]]: (event: EventOf<Type>) => string[]}} */
const SAYS = {
  run_started: (e) => ["run started", e.model],
  run_resumed: (e) => ["run resumed", e.model],
  tools_changed: (e) => ["tools", some(e.tools.length, "tool")],
  turn_started: (e) => [`turn ${e.turn}`, e.chars ? `${e.chars} characters sent` : ""],
  text_delta: (e) => ["text", e.text],
  reasoning_delta: (e) => ["reasoning", e.text],
  reply_retried: (e) => ["retry", `${e.kind}: ${e.reason}`],
  reply_failed: (e) => ["no reply", `${e.kind}: ${e.reason}`],
  replied: (e) => ["reply", replySays(e.reply)],
  call_judged: (e) => ["verdict", [e.verdict + onMachine(e), e.code, e.reason].filter(Boolean)
    .join(" · ")],
  approval_answered: (e) => ["approval", [e.decision, e.reason].filter(Boolean).join(" · ")],
  call_started: (e) => ["call started", `${e.name}${onMachine(e)} ${gist(e, 120)}`],
  call_delayed: (e) => [e.seconds ? "offline" : "online", e.seconds
    ? `${e.machine} went offline; the call waits ${duration(e.seconds)} at most`
    : `${e.machine} is online again`],
  call_output: (e) => ["output", e.text],
  call_finished: (e) => ["call ended", `${e.result.name}: ${e.result.error || "ok"}`],
  prompted: (e) => ["message",
    e.message.blocks.map((one) => ("text" in one ? one.text : "")).join(" ")],
  context_trimmed: () => ["context trimmed", "older messages were shortened to fit"],
  run_finished: (e) => ["run ended", [e.stop, e.reason].filter(Boolean).join(" · ")],
};

/** @param {Api.Reply} reply */
function replySays(reply) {
  const calls = (reply.calls || []).map((one) => one.name).join(", ");
  return [reply.text && oneLine(reply.text, 100), calls && `calls ${calls}`]
    .filter(Boolean).join(" · ");
}

/**
 * A record as a name and a text.
 * @param {Api.Record} options @returns {[string, string]}
 */
export function says({ event }) {
  /** @type {(event: any) => string[]} */
  const words = SAYS[event.type] || ((e) => [e.type, ""]); // of a newer version
  const [name, text] = words(event);
  return [oneLine(name, 24), oneLine(text || "", 160)];
}

/**
 * Whether a record is an error or a refusal.
 * @param {Api.Record} options
 */
export function isTrouble({ event }) {
  if (event.type === "call_finished") return Boolean(event.result.error);
  if (event.type === "call_judged") return event.verdict !== "allow";
  if (event.type === "run_finished") return event.stop !== "completed";
  if (event.type === "approval_answered") return !["once", "session"].includes(event.decision);
  return ["reply_retried", "reply_failed", "call_delayed"].includes(event.type);
}

/**
 * The call id of a record, or "".
 * @param {Api.Record} options
 */
export function callIdOf({ event }) {
  if ("call_id" in event) return event.call_id;
  return "result" in event ? event.result.call_id : "";
}
