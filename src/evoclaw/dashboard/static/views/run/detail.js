// @ts-check
// The detail panel of the selected turn, call or record.

import { h, lookup, replace, setText } from "../../dom.js";
import { count, duration, money, some } from "../../format.js";
import { badge, button, copyButton, empty, facts, fold, jsonBlock, textBlock, verdictBadge, when,
} from "../../components.js";
import { written } from "../../markdown/writer.js";
import { outcome } from "./model.js";
import { receiptPart } from "./receipts.js";
import { gist, onMachine, OUTCOMES, parsed, turnState } from "./labels.js";

const TAIL = 20_000; // characters of a running call's output that are shown

/** The panel. `page` has `select`, `fork` and `receipts`. */
export class Detail {
  /** @param {RunPage} page */
  constructor(page) {
    this.page = page;
    this.body = h("div", { class: "detail-body" });
    this.element = h("section", { class: "detail card", "aria-labelledby": "detail-title",
      id: "detail", tabindex: "-1" }, h("h2", { id: "detail-title" }, "Detail"), this.body);
    /** @type {string|null} */
    this.shown = null;
    /** @type {HTMLElement|null} */
    this.growing = null; // shows a text that is still streaming
    this.grown = 0;
  }

  /**
   * Shown while nothing is selected: the answer, once there is one.
   * @param {RunModel} run
   */
  overview(run) {
    const key = `run ${run.finished ? run.finished.at : ""}`;
    if (key === this.shown) return;
    this.shown = key;
    const { text, stop } = run.finished || {};
    this.title(text ? "Answer" : "Detail");
    replace(this.body, text && stop !== "waiting" && written(text),
      empty("Select a turn, a call or a record."));
  }

  /**
   * Show the selected item; it is rendered again only if it changed.
   * @param {RunModel} run @param {Selected|null} selected @param {Api.Record|null} record
   */
  update(run, selected, record) {
    if (!selected && !record) return this.overview(run);
    const thing = selected && run[selected.kind === "turn" ? "turns" : "calls"][selected.place];
    const kind = selected && thing ? selected.kind : "record";
    const state = thing ? stateOf(kind, thing, run) : "";
    const key = `${kind} ${thing ? thing.place : ""} ${record ? record.seq : ""} ${state}`;
    if (key === this.shown) return this.grow(kind, thing);
    this.shown = key;
    const open = new Set([...this.body.querySelectorAll("details[open] > summary")]
      .map((one) => one.textContent));
    this.growing = null;
    const parts = this.parts(run, selected);
    replace(this.body, parts, record && fold("The record, as JSON", () => jsonBlock(record)));
    for (const one of this.body.querySelectorAll("details")) {
      if (open.has(one.firstChild?.textContent || "")) one.open = true;
    }
  }

  /** @param {RunModel} run @param {Selected|null} selected */
  parts(run, selected) {
    const turn = selected?.kind === "turn" && run.turns[selected.place];
    if (turn) return turnPart(this, turn, run);
    const call = selected?.kind === "call" && run.calls[selected.place];
    if (call) return callPart(this, call, run);
    this.title("Record");
    return null;
  }

  /** @param {string} kind @param {any} thing */
  grow(kind, thing) {
    if (!this.growing || !thing) return;
    const text = kind === "call" ? thing.output : thing.text;
    if (text.length === this.grown) return;
    this.grown = text.length;
    const atEnd = this.growing.scrollTop + this.growing.clientHeight
      >= this.growing.scrollHeight - 8;
    setText(this.growing, text.length > TAIL ? `…${text.slice(-TAIL)}` : text);
    if (atEnd) this.growing.scrollTop = this.growing.scrollHeight;
  }

  /** @param {string} text */
  title(text) {
    setText(this.element.firstChild, text);
  }

  /**
   * A text that is still streaming.
   * @param {string} label
   */
  growingText(label) {
    this.grown = -1;
    this.growing = h("pre", { class: "text", tabindex: "0", role: "region", "aria-label": label });
    return this.growing;
  }
}

/** @param {string} kind @param {any} thing @param {RunModel} run */
function stateOf(kind, thing, run) {
  if (kind === "turn") {
    /** @type {number[]} */
    const numbers = thing.calls;
    const calls = numbers.map((one) => outcome(run.calls[one], run)).join();
    return `${turnState(thing, run)} ${thing.retries.length} ${calls}`;
  }
  return `${outcome(thing, run)} ${thing.verdict} ${thing.answers.length}`;
}

/** @param {string} title @param {...Child} content */
/** @param {Block} block */
const blockText = (block) => ("text" in block ? block.text : "");

/** @param {string} title @param {...Child} content */
const part = (title, ...content) => h("div", { class: "detail-part" }, h("h3", null, title),
  content);

/** @param {Detail} detail @param {Turn} turn @param {RunModel} run */
function turnPart(detail, turn, run) {
  detail.title(`Turn ${turn.number}`);
  const { reply } = turn, usage = reply?.usage || {};
  const writes = turn.repliedAt === null && !run.finished;
  const took = turn.repliedAt === null ? null : duration(turn.repliedAt - turn.startedAt);
  return [
    facts([["state", turnState(turn, run)], ["started", when(turn.startedAt)],
      ["first token after", turn.firstAt && duration(turn.firstAt - turn.startedAt)],
      ["reply after", took], ["model", reply?.model || run.model], ["finish", reply?.finish],
      ["tokens", reply && `${count(usage.input || 0)} in, ${count(usage.output || 0)} out`],
      ["cost", reply && money(reply.cost ?? null)],
      ["sent", turn.chars ? some(turn.chars, "character") : null]]),
    turn.failed && part("No reply", h("p", { class: "bad-text" },
      `${turn.failed.kind}: ${turn.failed.reason}`)),
    turn.messages.map((one) => part(`Message before this turn${one.why ? ` (${one.why})` : ""}`,
      textBlock(one.message.blocks.map(blockText).join("\n"),
        "message"))),
    turn.retries.map((one) => part(`Retry (${one.attempt})`,
      h("p", null, `${one.kind}: ${one.reason}`))),
    turn.reasoning && fold("Reasoning", () => written(turn.reasoning)),
    (turn.text || writes) && part("Text",
      writes ? detail.growingText("text so far") : written(turn.text)),
    turn.calls.length > 0 && part(some(turn.calls.length, "call"), callList(detail, turn, run)),
    h("div", { class: "row" },
      button("Fork from this turn…", () => detail.page.fork(turn.number))),
  ];
}

/** @param {Detail} detail @param {Turn} turn @param {RunModel} run */
function callList(detail, turn, run) {
  return h("ul", { class: "call-list" }, turn.calls.map((place) => {
    const call = run.calls[place], [tone, , words] = OUTCOMES[outcome(call, run)];
    const name = h("strong", null, call.name);
    return h("li", null, button([name, `${onMachine(call)} `, gist(call, 48)],
      () => detail.page.select({ kind: "call", place }), { tone: "plain" }), badge(tone, words));
  }));
}

/** @param {Detail} detail @param {Call} call @param {RunModel} run */
function callPart(detail, call, run) {
  const how = outcome(call, run), [tone, , words] = OUTCOMES[how];
  detail.title(`Call ${call.name}${onMachine(call)}`);
  const given = call.arguments || parsed(call.written);
  return [
    h("div", { class: "row" }, badge(tone, words),
      call.result?.error && badge("bad", call.result.error),
      button(`turn ${run.turns[call.turn]?.number ?? "–"}`,
        () => detail.page.select({ kind: "turn", place: call.turn }), { tone: "plain" })),
    facts(callFacts(call)),
    part("Arguments", typeof given === "string" ? textBlock(given, "arguments, not JSON")
      : jsonBlock(given, "arguments")),
    verdictPart(call),
    outputPart(detail, call, how),
    call.result && part("Result", resultBlocks(call.result)),
    call.result && receiptPart(call, detail.page),
    call.result?.details && Object.keys(call.result.details).length > 0
      && fold("All details of the result", () => jsonBlock(call.result?.details, "details")),
  ];
}

/** @param {Call} call */
function callFacts(call) {
  const details = call.result?.details || {};
  const { startedAt, endedAt } = call;
  const asked = call.verdict === "ask" ? call.from : call.judgedAt ?? call.askedAt;
  const held = startedAt !== null && asked !== null ? startedAt - asked : 0;
  return [
    ["started", startedAt === null ? "never ran" : when(startedAt)],
    ["took", startedAt !== null && endedAt !== null ? duration(endedAt - startedAt) : null],
    ["on the device", details.elapsed_ms ? duration(details.elapsed_ms / 1000) : null],
    ["waited", held > 0.05 ? duration(held) : null],
    ["ran on", details.agent || call.machine], ["isolation", details.isolation],
    ["exit code", details.exit_code],
    ["request", call.requestId && h("span", { class: "row" },
      h("code", null, call.requestId), copyButton(call.requestId))],
  ];
}

/** @param {Call} call */
function verdictPart(call) {
  if (!call.verdict) return null;
  return part("Verdict",
    h("p", { class: "row" }, verdictBadge(call.verdict), call.code && h("code", null, call.code)),
    call.reason && h("p", null, call.reason),
    call.answers.map((one) => h("p", { class: "small" }, when(one.at), " ",
      ANSWERS[one.decision] || `Answered ${one.decision}`, one.reason && `: ${one.reason}`)));
}

const ANSWERS = lookup({
  pending: "Not answered yet", once: "Approved once",
  session: "Approved for the session", deny: "Denied",
});

/** @param {Detail} detail @param {Call} call @param {string} how */
function outputPart(detail, call, how) {
  if (how === "running") return part("Output", detail.growingText("output so far"));
  if (!call.output) return null;
  return fold(`Live output, ${some(call.output.length, "character")}`,
    () => textBlock(call.output, "output"));
}

const PICTURES = /^image\/(png|jpeg|gif|webp)$/;

/** @param {Api.ToolResult} result */
function resultBlocks(result) {
  return (result.blocks || []).map((block) => {
    if (block.type === "image") {
      if (!PICTURES.test(block.media_type)) return h("p", null, `an image (${block.media_type})`);
      return h("img", { class: "result-image", alt: "an image from the tool",
        src: `data:${block.media_type};base64,${block.data}` });
    }
    return h("div", { class: block.type === "error" ? "error-block" : "" },
      block.type === "error" && h("p", null, badge("bad", block.kind)),
      textBlock(block.text, block.type === "error" ? "error" : "result"), labelOf(block));
  });
}

/** @param {Block} options */
function labelOf({ label }) {
  if (!label) return null;
  const words = [label.untrusted && "untrusted", label.private && "private"].filter(Boolean);
  const from = (label.sources || []).join(", ");
  return words.length > 0 && h("p", { class: "small soft" },
    `${words.join(", ")}${from ? `, from ${from}` : ""}`);
}
