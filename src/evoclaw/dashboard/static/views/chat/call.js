// @ts-check
// The card of one tool call: arguments, verdict, output and result.

import { announce, clean, h, lookup, oneLine, replace, setText } from "../../dom.js";
import { duration } from "../../format.js";
import { badge, fold, jsonBlock, textBlock } from "../../components.js";

const MAX_LIVE_CHARS = 8000; // of live output that stay visible
const PICTURE = /^image\/(png|jpeg|gif|webp)$/;
const BASE64 = /^[A-Za-z0-9+/=\s]*$/;
// The main argument of a call: the first of these is shown beside its name.
const MAIN_ARGUMENTS = ["command", "path", "file_path", "pattern", "url", "query", "agent", "tool",
  "task", "question", "action", "title", "name", "text"];
const ANSWERS = lookup({ once: "approved once", session: "approved for the session",
  deny: "denied" });

/**
 * A one-line summary of a call.
 * @param {Api.JsonObject<any>} args
 */
export function aboutCall(args) {
  const main = MAIN_ARGUMENTS.map((name) => args[name]).find((value) => typeof value === "string");
  const target = typeof args.agent_id === "string" ? `${args.agent_id}: ` : "";
  if (main) return oneLine(target + main, 160);
  const text = JSON.stringify(args);
  return text === "{}" ? "" : oneLine(text, 160);
}

/**
 * Arguments as the model wrote them: an object, or the text if it is not JSON.
 * @param {string} [text]
 */
export function argumentsOf(text) {
  try {
    const value = JSON.parse(text || "{}");
    return value && typeof value === "object" && !Array.isArray(value) ? value : { "": value };
  } catch {
    return { "not JSON": text };
  }
}

/**
 * An image block as an element.
 * @param {Api.ImageBlock} block @param {string} alt
 */
export function picture(block, alt) {
  const safe = PICTURE.test(block.media_type) && BASE64.test(block.data);
  if (!safe) return h("p", { class: "soft" }, `an image (${block.media_type})`);
  const src = `data:${block.media_type};base64,${block.data.replace(/\s/g, "")}`;
  return h("img", { class: "picture", alt, src });
}

/**
 * The blocks of a result: texts, errors and images.
 * @param {Api.ToolResult} result
 */
function blocksOf(result) {
  return (result.blocks || []).map((block) => (block.type === "image"
    ? picture(block, "image in the result of the call") : textBlock(block.text, "result")));
}

/** @param {Api.ToolResult} result */
const textOf = (result) =>
  result.blocks.map((block) => ("text" in block ? block.text : "")).join("\n");

/** The card of a call; its methods take the events of the call. */
export class CallCard {
  /** @param {Api.ToolCall} call @param {string} runId */
  constructor(call, runId) {
    this.args = argumentsOf(call.arguments);
    this.name = call.name;
    this.live = "";
    this.startedAt = null;
    this.result = null;
    this.state = h("span", { class: "state" }, badge("quiet", "requested"));
    this.place = h("span", { class: "soft" });
    this.time = h("span", { class: "soft number" });
    this.verdict = h("p", { class: "verdict small", hidden: true });
    this.content = h("div", { class: "said" });
    const about = aboutCall(this.args);
    const name = oneLine(call.name, 60);
    this.element = h("article", { class: "call", "aria-label": `call of ${name}` },
      h("header", { class: "row" }, h("strong", { class: "mono" }, name),
        this.state, h("span", { class: "grow" }), this.place, this.time),
      about && h("p", { class: "about mono", title: about }, about),
      this.verdict, this.content,
      h("footer", { class: "row small" },
        Object.keys(this.args).length > 0
          && fold("Arguments", () => jsonBlock(this.args, "arguments")),
        this.more = h("span", { class: "grow" }),
        runId && h("a", { href: `#/runs/${encodeURIComponent(runId)}`,
          "aria-label": `timeline of the run of this call of ${name}` },
        "timeline")));
  }

  /**
   * A policy judged the call.
   * @param {EventOf<"call_judged">} options
   */
  judged({ verdict, code, reason, machine }) {
    this.runsOn(machine);
    if (verdict === "allow") this.show("quiet", "allowed");
    else this.show(verdict === "ask" ? "warn" : "bad",
      verdict === "ask" ? "needs approval" : "denied");
    const why = [reason, code && `(${code})`].filter(Boolean).join(" ");
    if (verdict === "allow" && !why) return;
    const word = { allow: "Allowed", ask: "Needs approval", deny: "Denied" }[verdict] || verdict;
    this.verdict.hidden = false;
    setText(this.verdict, why ? `${word}: ${why}` : word);
  }

  /**
   * A person answered.
   * @param {EventOf<"approval_answered">} options
   */
  answered({ decision, reason }) {
    const answer = ANSWERS[decision];
    if (!answer) return;
    this.verdict.hidden = false;
    replace(this.verdict, this.verdict.textContent, " ",
      h("strong", null, reason && decision === "deny" ? `${answer}: ${reason}` : answer));
    if (decision !== "deny") this.show("quiet", "approved");
  }

  /**
   * The machine of the call is known.
   * @param {string} [machine]
   */
  runsOn(machine) {
    if (machine) setText(this.place, `on ${oneLine(machine, 40)}`);
  }

  /**
   * The machine of the call went offline, or is online again.
   * @param {EventOf<"call_delayed">} options @param {number} at
   */
  delayed({ machine, seconds }, at) {
    const name = oneLine(machine, 40);
    if (seconds) this.show("warn", `${name} is offline`);
    else this.show("busy", "running");
    this.verdict.hidden = false;
    setText(this.verdict, seconds ? `${name} went offline; the call waits until `
      + `${new Date((at + seconds) * 1000).toLocaleTimeString()}. Press Stop to give up.`
      : `${name} is online again.`);
    announce(this.verdict.textContent);
  }

  /**
   * The call started.
   * @param {number} at @param {string} [machine]
   */
  started(at, machine) {
    this.runsOn(machine);
    this.startedAt = at;
    this.show("busy", "running");
    this.live = "";
  }

  /**
   * The call produced output.
   * @param {string} text
   */
  output(text) {
    this.live = (this.live + text).slice(-MAX_LIVE_CHARS);
    if (!this.pre) {
      this.pre = h("pre", { class: "text live", tabindex: "0", role: "group",
        "aria-label": "live output" });
      replace(this.content, this.pre);
    }
  }

  /** Draw new output; called once per frame. */
  draw() {
    if (!this.pre || this.result) return;
    setText(this.pre, this.live);
    this.pre.scrollTop = this.pre.scrollHeight;
  }

  /**
   * Update the running time.
   * @param {number} now
   */
  tick(now) {
    if (!this.startedAt || this.result) return;
    setText(this.time, duration(Math.max(0, now - this.startedAt)));
  }

  /**
   * The call has its result.
   * @param {Api.ToolResult} result @param {number} [at]
   */
  finished(result, at) {
    this.result = result;
    const { details = {}, error } = result;
    if (error === "permission_denied" && !this.startedAt) this.show("bad", "denied");
    else if (error) this.show("bad", error.replace(/_/g, " "));
    else this.show("good", "done");
    this.runsOn(details.agent);
    const took = details.elapsed_ms !== undefined ? details.elapsed_ms / 1000
      : this.startedAt && at ? at - this.startedAt : null;
    setText(this.time, took === null ? "" : duration(took));
    this.showResult(result, details);
  }

  /** @param {Api.ToolResult} result @param {Api.JsonObject<any>} details */
  showResult(result, details) {
    const text = clean(textOf(result)).trim();
    const pictures = (result.blocks || []).some((block) => block.type === "image");
    const short = text && text.length <= 160 && !text.includes("\n") && !pictures;
    const line = oneLine(text, 120) || (pictures ? "an image" : "(empty)");
    replace(this.content, short ? h("p", { class: result.error ? "bad-text" : "" }, text)
      : text || pictures ? fold(h("span", { class: result.error ? "bad-text" : "" }, line),
        () => blocksOf(result)) : null);
    const proof = details.receipt && details.receipt.state;
    setText(this.more, proof ? `receipt ${oneLine(proof, 30)}` : "");
  }

  /** @param {string} tone @param {string} text */
  show(tone, text) {
    this.element.dataset.tone = tone;
    replace(this.state, badge(tone, text));
  }
}
