// @ts-check
// The receipts that devices signed for a run's calls, and whether they are valid.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { badge, facts, fold, jsonBlock, load, when } from "../../components.js";

/** The receipts of a run, loaded when first needed, and again after more calls ended. */
export class Receipts {
  /** @param {string} runId @param {AbortSignal} signal */
  constructor(runId, signal) {
    this.runId = runId;
    this.signal = signal;
    /** @type {Promise<Api.ReceiptList>|null} */
    this.asked = null;
    this.ended = -1;
  }

  /**
   * The receipts of one call; `ended`: the number of ended calls; `again`: reload.
   * @param {Call} call @param {number} ended @param {boolean} again
   */
  async of(call, ended, again) {
    if (!this.asked || this.ended !== ended || again) {
      this.ended = ended;
      this.asked = get(`/v1/runs/${encodeURIComponent(this.runId)}/receipts`, null,
        { signal: this.signal });
    }
    const { items } = await this.asked;
    return items.filter((one) => one.call_id === call.id || one.request_id === call.requestId);
  }
}

/**
 * The receipts of a call, below its result.
 * @param {Call} call @param {RunPage} page
 */
export function receiptPart(call, page) {
  if (call.startedAt === null) return null;
  const place = h("div", { class: "small" }, "…");
  const more = checkedOnArrival(call);
  let tries = 0;
  load(place, () => page.receiptsOf(call, tries++ > 0),
    (items) => (items.length ? items.map(receipt)
      : h("p", { class: "soft" }, more ? "" : "No machine signed this call.")), page.signal);
  return h("div", { class: "detail-part" }, h("h3", null, "Receipt"), more, place);
}

/**
 * The orchestrator's check when the result arrived.
 * @param {Call} call
 */
function checkedOnArrival(call) {
  const details = call.result?.details || {};
  const several = Array.isArray(details.receipts) ? details.receipts : [];
  const all = [details.receipt, ...several].filter((one) => one && typeof one === "object");
  return all.length > 0 && h("p", { class: "row small" }, "On arrival:", all.map((one) =>
    badge(one.state === "valid" ? "good" : "bad", `${one.state}, ${one.agent} ${one.id || ""}`)));
}

/** @param {Api.ReceiptView} one */
function receipt(one) {
  const valid = one.valid === null ? badge("quiet", "key unknown")
    : badge(one.valid ? "good" : "bad", one.valid ? "valid" : "invalid");
  return h("div", { class: "receipt" },
    facts([["checked now", valid], ["signed by", one.agent_id], ["counter", one.counter],
      ["chain", h("code", null, one.chain)], ["hash", h("code", null, one.hash)],
      ["at", when(one.at)]]),
    fold("Signed content", () => jsonBlock(one.receipt, "receipt")));
}
