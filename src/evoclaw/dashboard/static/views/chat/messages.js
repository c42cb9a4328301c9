// @ts-check
// Messages as elements: of the user, of the loop, and of the model.

import { h, oneLine, replace, setText } from "../../dom.js";
import { bytes, count, duration, money, some } from "../../format.js";
import { badge, button, fold, runBadge, textBlock } from "../../components.js";
import { RatingButtons } from "../../rating.js";
import { CallCard, picture } from "./call.js";
import { splitFiles } from "./files.js";
import { Writer, written } from "../../markdown/writer.js";

/** @type {{[kind: string]: string}} */
const WHY = {
  confirm: "The loop asked whether the answer is complete",
  continue: "The loop asked to continue", evidence: "The loop asked for evidence",
  closing: "The loop asked for a closing answer", memory: "Recalled notes for this run",
  start: "Instructions of this session", unknown: "Sent on the user's behalf",
};
// The first words of the loop's messages; a stored history does not have their kind.
const LOOP = [
  ["Before I accept your answer, please verify:", "confirm"],
  ["Answer the user now with what you have. Do not call any tool", "closing"],
  ["Your answer cannot be accepted as it is: ", "evidence"],
  ["Go on with what is left.", "continue"], ["Go on: ", "continue"],
];

/**
 * The texts of a message's blocks.
 * @param {{blocks?: Block[]}} message
 */
export const textOf = (message) =>
  (message.blocks || []).map((block) => ("text" in block ? block.text : "")).filter(Boolean)
    .join("\n");

/**
 * The images of a message, as elements.
 * @param {{blocks?: Block[]}} [message]
 */
export const picturesOf = (message) => (message?.blocks || [])
  .filter((block) => block.type === "image").map((block) => picture(block, "attached image"));

/**
 * Whether a result changed the canvas.
 * @param {Api.ToolResult} result
 */
export const showsCanvas = (result) =>
  !result.error && (result.name === "canvas" || result.name.endsWith(".canvas"));

/**
 * The kind of a message that the loop sent; empty for other messages.
 * @param {Message} message
 */
export function loopMessageKind(message) {
  if (message.role !== "user") return "";
  const text = textOf(message);
  const found = LOOP.find(([start]) => text.startsWith(start));
  if (found) return found[1];
  /** @param {Block} block */
  const remembered = (block) => block.label?.sources?.includes("memory");
  return text && message.blocks.every(remembered) ? "memory" : "";
}

/**
 * A message of the user; `tools` are its buttons, `pictures` its images.
 * @param {string} text @param {{kind?: string, tools?: Child[], pictures?: Child[]}} [options]
 */
export function userMessage(text, { kind = "", tools = [], pictures = [] } = {}) {
  const { words, files } = splitFiles(text);
  return h("div", { class: "said-by person" },
    h("div", { class: "bubble" },
      h("span", { class: "unseen" }, kind === "steer" ? "You, while it ran: " : "You: "),
      h("div", { class: "as-typed" }, words), pictures,
      files.map((file) => fold(`${oneLine(file.name, 60)} (${bytes(file.text.length)})`,
        () => textBlock(file.text, `the file ${file.name}`)))),
    h("div", { class: "row end tools" },
      kind === "steer" && h("span", { class: "soft small" }, "steered"), tools));
}

/**
 * A message of the loop, collapsed.
 * @param {string} text @param {string} why
 */
export function loopMessage(text, why) {
  return h("div", { class: "note small" },
    fold(WHY[why] || WHY.unknown, () => textBlock(text, "message")));
}

/** One reply of the model, complete or streaming, with its calls. */
export class Reply {
  /** @param {string} runId @param {ChatActions} act */
  constructor(runId, act) {
    this.runId = runId;
    this.act = act;
    this.number = null;
    this.text = "";
    this.thought = "";
    this.cards = new Map();
    this.thinking = h("div", { class: "thinking" });
    this.prose = h("div", { class: "prose" });
    this.calls = h("div", { class: "calls" });
    this.status = h("p", { class: "soft small status", hidden: true });
    this.tools = h("div", { class: "row tools" });
    this.element = h("div", { class: "said-by model" },
      h("span", { class: "unseen" }, "The agent: "),
      this.thinking, this.prose, this.status, this.calls, this.tools);
    this.writer = new Writer(this.prose);
    this.fresh = this.freshThought = "";
    this.thoughtShown = null;
  }

  /**
   * Set the status line; empty hides it.
   * @param {string} text
   */
  setStatus(text) {
    this.status.hidden = !text;
    setText(this.status, text);
  }

  /**
   * Add a piece of text.
   * @param {string} piece
   */
  addText(piece) {
    this.text += piece;
    this.fresh += piece;
  }

  /**
   * Add a piece of reasoning.
   * @param {string} piece
   */
  addThought(piece) {
    this.thought += piece;
    this.freshThought += piece;
  }

  /** Discard what came so far. */
  clear() {
    replace(this.prose);
    this.text = this.fresh = "";
    this.clearThought();
    this.writer = new Writer(this.prose);
  }

  clearThought() {
    replace(this.thinking);
    this.thought = this.freshThought = "";
    this.thoughtShown = null;
  }

  /** Draw new text; called once per frame. */
  draw() {
    if (this.fresh || this.thought) this.setStatus("");
    if (this.fresh) this.writer.write(this.fresh);
    this.fresh = "";
    if (this.thought) this.drawThought(this.text ? "Reasoning" : "Thinking…");
    for (const card of this.cards.values()) card.draw();
  }

  /** @param {string} label */
  drawThought(label) {
    if (!this.thoughtShown) {
      const words = h("span"), text = h("div", { class: "prose soft" });
      this.thoughtShown = { words, writer: new Writer(text) };
      replace(this.thinking,
        h("details", null, h("summary", { class: "soft small" }, words), text));
    }
    setText(this.thoughtShown.words, label);
    if (this.freshThought) this.thoughtShown.writer.write(this.freshThought);
    this.freshThought = "";
  }

  /**
   * The reply is complete: keep the streamed text if it is the same.
   * @param {Api.Reply} reply @param {number|null} number
   */
  whole(reply, number) {
    this.draw();
    this.setStatus("");
    this.number = number;
    const text = reply.text || "";
    if (text !== this.text) this.clear();
    if (text !== this.text) this.addText(text);
    if (reply.reasoning && reply.reasoning !== this.thought) {
      this.clearThought();
      this.addThought(reply.reasoning);
    }
    this.draw();
    this.writer.end();
    if (this.thought) this.drawThought("Reasoning");
    this.thoughtShown?.writer.end();
    for (const call of reply.calls || []) this.addCall(call);
    if (reply.finish === "length") this.setStatus("The reply was cut off at the length limit.");
    if (reply.finish === "filtered") this.setStatus("The provider's filter cut the reply off.");
    if (text) this.addTools(text);
  }

  /** @param {Api.ToolCall} call */
  addCall(call) {
    const card = new CallCard(call, this.runId);
    this.cards.set(call.id, card);
    this.calls.append(card.element);
  }

  /** @param {string} text */
  addTools(text) {
    replace(this.tools,
      button("Copy", () => this.act.copy(text, this.prose), { tone: "plain tiny" }),
      button("Branch", () => this.act.branch(this.number, "assistant", text),
        { tone: "plain tiny", title: "Continue from here in a new session" }));
  }

  /**
   * The reply is the answer of a completed run: it can be rated.
   * @param {RatingButtons} rating
   */
  rate(rating) {
    if (!this.tools.contains(rating.element)) this.tools.append(rating.element); // keeps the focus
  }
}

/** The buttons that rate a run in the chat. @param {Api.RatedRun} run */
export const ratingOf = (run) => new RatingButtons(run.run_id, run.rating, "plain tiny");

/**
 * How a run ended, and its rating; only that of the answer if it completed.
 * @param {Api.RunView} run @param {Reply|null} answer @param {string} lastText
 * @param {RatingButtons} rating @param {ChatActions} act
 */
export function ending(run, answer, lastText, rating, act) {
  if (run.state !== "ended" || !run.stop) return null;
  if (run.stop === "completed") {
    answer?.rate(rating);
    return null;
  }
  const more = run.text && run.text.trim() !== lastText.trim() ? written(run.text) : null;
  const { asked } = run;
  const again = asked && button("Try again", () => act.again(asked));
  return h("div", { class: "ending" }, more,
    h("div", { class: "row" }, runBadge(run),
      h("span", { class: "grow soft" }, run.reason || ""),
      h("a", { class: "small", href: `#/runs/${encodeURIComponent(run.run_id)}` }, "timeline"),
      rating.element, again));
}

/**
 * A line with the turns, calls, tokens, cost and duration of a run.
 * @param {Api.RunView|null} run
 */
export function costLine(run) {
  if (!run) return null;
  const took = run.ended_at ? duration(run.ended_at - (run.began_at || 0)) : "";
  const facts = [
    some(run.turns || 0, "turn"), some(run.calls || 0, "call"),
    `${count(run.tokens_in || 0)} tokens in, ${count(run.tokens_out || 0)} out`,
    money(run.cost === undefined ? 0 : run.cost), took,
  ].filter(Boolean);
  const state = { ended: "Last run", running: "Running", waiting: "Waiting for you",
    queued: "Queued" }[run.state] || run.state;
  return [h("span", null, `${state}: ${facts.join(" · ")} · `),
    h("a", { href: `#/runs/${encodeURIComponent(run.run_id)}` }, "timeline")];
}

/**
 * The line of a queued run.
 * @param {() => unknown} cancel
 */
export function queuedLine(cancel) {
  return h("div", { class: "row queued" }, badge("quiet", "queued"),
    h("span", { class: "soft small grow" }, "Starts when the earlier runs have ended"),
    button("Cancel", cancel, { tone: "tiny" }));
}

/**
 * The title of a session, or what stands for it.
 * @param {Api.SessionView} session
 */
export const titleOf = (session) => oneLine(session.title || "(no title yet)", 80);
