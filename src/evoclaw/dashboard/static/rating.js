// @ts-check
// A person's rating of a run: thumbs up or thumbs down, and why.

import { post } from "./api.js";
import { h, oneLine, s } from "./dom.js";
import { may } from "./live.js";
import { button, confirmed, toast } from "./components.js";

const HAND = "M3 10h4v10H3zM10 10l4-7c1.6 0 2.6 1 2.3 2.6L15.6 9h4.6c1 0 1.7 1 1.4 2l-2 7.4"
  + "c-.3 1-1 1.6-2 1.6H10z";

/** The buttons that rate a run; the pressed one is its current rating. */
export class RatingButtons {
  /** @param {string} runId @param {Api.Rating|null|undefined} rating @param {string} [tone] */
  constructor(runId, rating, tone) {
    this.path = /** @type {const} */ (`/v1/runs/${encodeURIComponent(runId)}/rating`);
    this.good = button(thumb("up"), () => this.give("good", ""),
      { tone, label: "Rate as good" });
    this.bad = button(thumb("down"), () => this.askWhy(), { tone, label: "Rate as bad" });
    this.element = h("span", { class: "rating", role: "group", "aria-label": "Rating" },
      this.good, this.bad);
    this.show(rating);
    this.offer(true);
  }

  /** Only a person can rate, and only what has ended. @param {boolean} isEnded */
  offer(isEnded) {
    this.element.hidden = !isEnded || !may("human");
  }

  /** Show a rating. @param {Api.Rating|null|undefined} rating */
  show(rating) {
    const why = rating?.reason ? `: ${oneLine(rating.reason, 200)}` : "";
    for (const [one, verdict] of /** @type {const} */ ([[this.good, "good"], [this.bad, "bad"]])) {
      const isPressed = rating?.verdict === verdict;
      one.setAttribute("aria-pressed", String(isPressed));
      one.title = isPressed ? `Rated as ${verdict}${why}` : `Rate as ${verdict}`;
    }
  }

  /** @param {"good"|"bad"} verdict @param {string} reason */
  async give(verdict, reason) {
    this.show(await post(this.path, { verdict, reason }));
    toast(`Rated as ${verdict}`);
  }

  async askWhy() {
    const reason = await confirmed("Rate as bad?",
      "The rating is stored with the run. The reason helps to improve the agent.",
      { action: "Rate as bad", ask: "Reason (optional)", tone: "primary" });
    if (reason !== null) await this.give("bad", oneLine(reason, 2000));
  }
}

/** @param {"up"|"down"} direction */
const thumb = (direction) => s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" },
  s("path", { d: HAND, transform: direction === "up" ? null : "matrix(1 0 0 -1 0 24)" }));
