// The words and signs of a run, the same in its timeline, its list and its panel.

import { oneLine } from "../../dom.js";
import { duration, some } from "../../format.js";
import { outcome } from "./model.js";

/** By outcome: its tone, its sign, and how it is said. */
export const OUTCOMES = {
  ok: ["good", "✓", "succeeded"],
  failed: ["bad", "✕", "failed"],
  timeout: ["bad", "⧗", "ran out of time"],
  denied: ["bad", "⊘", "denied"],
  cancelled: ["quiet", "◌", "cancelled"],
  lost: ["quiet", "◌", "has no answer"],
  running: ["busy", "◐", "running"],
  waiting: ["warn", "▲", "waits for a person"],
  queued: ["quiet", "○", "waits for its turn"],
};

/** What a call was for, in a few words: its command, its path, or its first argument. */
export function gist(call, limit = 60) {
  const given = call.arguments || parsed(call.written);
  if (typeof given === "string") return oneLine(given, limit);
  if (typeof given.agent_id === "string" && typeof given.action === "string") { // one device
    const { agent_id: device, action, params } = given;
    return oneLine(`${action} on ${device}: ${telling(params || {})}`, limit);
  }
  return oneLine(telling(given), limit);
}

/** The argument that tells most of what a call is for. */
function telling(given) {
  const first = ["command", "path", "pattern", "url", "query", "message", "tool"]
    .map((name) => given[name]).find((value) => typeof value === "string");
  return first ?? Object.values(given).find((one) => typeof one === "string") ?? "";
}

/** Arguments as the model wrote them; the text itself where it is no JSON. */
export function parsed(written) {
  if (!written) return {};
  try {
    const value = JSON.parse(written);
    return value && typeof value === "object" ? value : String(written);
  } catch {
    return String(written);
  }
}

/** All that a bar says to whoever does not see it. */
export function callLabel(call, run) {
  const how = outcome(call, run);
  const turn = run.turns[call.turn];
  const took = call.startedAt !== null && call.endedAt !== null
    ? `, ${duration(call.endedAt - call.startedAt)}` : "";
  const kind = call.result?.error ? ` (${call.result.error})` : "";
  return `turn ${turn ? turn.number : "–"}, call ${call.name || "?"} ${OUTCOMES[how][2]}${kind}`
    + `${took}${gist(call) ? `: ${gist(call)}` : ""}`;
}

/** How a turn stands: asked, writing, calling, over. */
export function turnState(turn, run) {
  if (turn.failed) return "no reply";
  if (turn.repliedAt === null) {
    if (run.finished || turn.endedAt !== null) return "broken off";
    return turn.firstAt === null ? "the model thinks" : "the model writes";
  }
  return turn.endedAt === null ? "calls run" : "over";
}

/** All that a turn's band says. */
export function turnLabel(turn, run) {
  const took = turn.repliedAt === null ? turnState(turn, run)
    : `reply after ${duration(turn.repliedAt - turn.startedAt)}`;
  const again = turn.retries.length ? `, asked ${some(turn.retries.length, "time")} again` : "";
  return `turn ${turn.number}: ${took}${again}, ${some(turn.calls.length, "call")}`;
}

const SAYS = {
  run_started: (e) => ["run began", e.model],
  run_resumed: (e) => ["run went on", e.model],
  tools_changed: (e) => ["tools", some(e.tools.length, "tool")],
  turn_started: (e) => [`turn ${e.turn}`, e.chars ? `${e.chars} characters sent` : ""],
  text_delta: (e) => ["text", e.text],
  reasoning_delta: (e) => ["thought", e.text],
  reply_retried: (e) => ["asked again", `${e.kind}: ${e.reason}`],
  reply_failed: (e) => ["no reply", `${e.kind}: ${e.reason}`],
  replied: (e) => ["reply", replySays(e.reply)],
  call_judged: (e) => ["verdict", [e.verdict, e.code, e.reason].filter(Boolean).join(" · ")],
  approval_answered: (e) => ["approval", [e.decision, e.reason].filter(Boolean).join(" · ")],
  call_started: (e) => ["call began", `${e.name} ${gist(e, 120)}`],
  call_output: (e) => ["output", e.text],
  call_finished: (e) => ["call ended", `${e.result.name}: ${e.result.error || "ok"}`],
  prompted: (e) => ["said", (e.message.blocks || []).map((one) => one.text || "").join(" ")],
  context_trimmed: () => ["context cut", "what the model sees was cut to fit"],
  run_finished: (e) => ["run ended", [e.stop, e.reason].filter(Boolean).join(" · ")],
};

function replySays(reply) {
  const calls = (reply.calls || []).map((one) => one.name).join(", ");
  return [reply.text && oneLine(reply.text, 100), calls && `calls ${calls}`]
    .filter(Boolean).join(" · ");
}

/** A record in two pieces: what kind of fact it is, and what it says. */
export function says({ event }) {
  const [name, text] = (SAYS[event.type] || ((e) => [e.type, ""]))(event);
  return [oneLine(name, 24), oneLine(text || "", 160)];
}

/** Whether a record tells of something that went wrong or was refused. */
export function isTrouble({ event }) {
  if (event.type === "call_finished") return Boolean(event.result.error);
  if (event.type === "call_judged") return event.verdict !== "allow";
  if (event.type === "run_finished") return event.stop !== "completed";
  if (event.type === "approval_answered") return !["once", "session"].includes(event.decision);
  return ["reply_retried", "reply_failed"].includes(event.type);
}

/** The call that a record is about, or "". */
export const callIdOf = ({ event }) => event.call_id || event.result?.call_id || "";
