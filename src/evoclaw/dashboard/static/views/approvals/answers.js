// @ts-check
// Questions, approvals for a session, and past answers.

import { get, post } from "../../api.js";
import { h, lookup, replace } from "../../dom.js";
import { some } from "../../format.js";
import { known, may } from "../../live.js";
import { badge, button, empty, field, fold, load, table, toast, when } from "../../components.js";
import { argumentList, visible } from "./arguments.js";
import { runLink } from "./card.js";

/**
 * Show the questions; cards with typed text stay while others come and go.
 * @param {HTMLElement} place @param {Map<string, HTMLElement>} cards @param {boolean} human
 */
export function questions(place, cards, human) {
  const now = new Set(known.questions.map((one) => one.id));
  for (const [id, card] of cards) {
    if (!now.has(id)) { card.remove(); cards.delete(id); }
  }
  for (const one of known.questions) {
    if (cards.has(one.id)) continue;
    const card = question(one, human);
    cards.set(one.id, card);
    place.append(card);
  }
}

/** @param {Api.QuestionView} one @param {boolean} human */
function question(one, human) {
  const name = `answer-${one.id}`, options = one.options || [];
  const picks = options.map((text) => h("input", { value: text, name,
    type: one.multiple ? "checkbox" : "radio" }));
  const ownWords = one.own_words !== false;
  const words = ownWords && h("textarea", { rows: "2", maxlength: "20000" });
  const send = button("Answer", async () => {
    const chosen = picks.filter((pick) => pick.checked).map((pick) => pick.value);
    const text = words ? words.value.trim() : "";
    if (!chosen.length && !text) return toast("Choose or write an answer first.", "bad");
    await post(`/v1/runs/${encodeURIComponent(one.run_id)}/answer`,
      { question_id: one.id, chosen, text });
    return replace(card, h("p", { role: "status" }, "Answered. The run continues."));
  }, { tone: "primary" });
  const card = h("article", { class: "card question", "aria-label": "Question" },
    h("fieldset", { disabled: !human },
      h("legend", null, h("span", { class: "said" }, visible(one.text))),
      picks.map((pick, index) => h("label", { class: "check" }, pick, options[index])),
      words && field(options.length ? "Or in your own words" : "Your answer", words)),
    h("footer", { class: "row" }, human && send, h("span", { class: "soft small" },
      "Asked in ", runLink(one.run_id))));
  return card;
}

/**
 * The approvals that are in force, each with a button to withdraw it.
 * @param {HTMLElement} place @param {AbortSignal} signal @param {boolean} human
 * @returns {Promise<void>}
 */
export function standing(place, signal, human) {
  const ask = async () => (await get("/v1/approvals", null, { signal })).items
    .filter((one) => one.standing !== "waiting");
  const again = () => load(place, ask, show, signal);
  /** @type {Column<Api.ApprovalView>[]} */
  const columns = [
    { title: "Tool", main: true, cell: (row) => (row.tool ? h("code", null, row.tool) : "–") },
    { title: "Agent", cell: (row) => row.agent || "–" },
    { title: "Covers", wide: true, cell: (row) => (row.standing === "session" ? row.covers
      : "only this call, which has not run yet") },
    { title: "By", cell: (row) => row.answered_by },
    { title: "Since", cell: (row) => when(row.answered_at) },
    { title: "Used", number: true, cell: (row) => some(row.uses || 0, "time") },
    { title: "From", cell: (row) => (row.run_id ? runLink(row.run_id) : "–") },
  ];
  if (human) {
    columns.push({ title: "", cell: (row) => button("Withdraw", async () => {
      await post(`/v1/approvals/${encodeURIComponent(row.id)}/withdraw`);
      toast(`${row.tool} needs approval again`);
      await again();
    }, { label: `Withdraw the approval of ${row.tool}` }) });
  }
  /** @param {Api.ApprovalView[]} rows */
  const show = (rows) => (rows.length
    ? table("approvals in force", columns, rows)
    : h("p", { class: "soft small" }, "No approvals are in force."));
  return again();
}

const ANSWERS = lookup({ once: ["good", "once"], session: ["good", "session"],
  deny: ["bad", "denied"], expired: ["quiet", "expired"] });
/** @type {Column<Api.JsonObject<any>>[]} */
const PAST = [
  { title: "When", cell: (row) => when(row.at) },
  { title: "Tool", main: true, cell: (row) => h("code", null, row.tool || "–") },
  { title: "Agent", cell: (row) => row.agent_id },
  { title: "Answer", cell: (row) => answerBadge(row.decision) },
  { title: "Reason", wide: true, cell: (row) => row.reason || "–" },
  { title: "Arguments", cell: (row) => (row.parameters
    ? fold("Show", () => argumentList(row.parameters)) : "–") },
  { title: "Run", cell: (row) => (row.run_id ? runLink(row.run_id) : "–") },
];

/** @param {string} decision */
function answerBadge(decision) {
  const [tone, text] = ANSWERS[decision] || ["quiet", decision];
  return badge(tone, text);
}

/**
 * Past answers, from the audit log.
 * @param {HTMLElement} place @param {AbortSignal} signal
 */
export function history(place, signal) {
  if (!may("audit:read")) {
    return replace(place, h("p", { class: "soft small" }, "Past answers are in the audit log. "
      + "Your token cannot read it: it lacks the scope 'audit:read'."));
  }
  const ask = () => answered(signal);
  return load(place, ask, (rows) => (rows.length ? table("answers, the newest first", PAST, rows)
    : empty("No answers yet.")), signal);
}

/**
 * Answers, each with the arguments of its call.
 * @param {AbortSignal} signal
 */
async function answered(signal) {
  const [answers, calls] = await Promise.all([
    get("/v1/audit", { kind: "approval", limit: 200 }, { signal }),
    get("/v1/audit", { kind: "call", verdict: "ask", limit: 400 }, { signal })]);
  const parameters = new Map(calls.items.map((call) => [call.request_id, call.parameters]));
  return answers.items.filter((one) => one.decision !== "pending")
    .sort((a, b) => b.seq - a.seq).slice(0, 50)
    .map((one) => ({ ...one, parameters: parameters.get(one.request_id) }));
}
