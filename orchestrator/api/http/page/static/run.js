// One answer on the page: it is asked for, streams in, and says how it ended.

import { stream } from "./api.js";
import { Answer, TokenView } from "./tokens.js";
import { drafting, percent, tokenLine } from "./words.js";

const DRAW_EVERY_MS = 500;

export class Run {
  /** `onRounds` is told, now and then, of an answer whose rounds are shown beside it. */
  constructor(parent, title, onRounds = () => {}) {
    const panel = parent.appendChild(document.getElementById("panel").content.cloneNode(true).firstElementChild);
    const part = (name) => panel.querySelector(`.${name}`);
    part("title").textContent = title;
    part("text").setAttribute("aria-label", title);
    this.panel = panel;
    this.rateText = part("rate");
    this.notice = part("notice");
    this.onRounds = onRounds;
    this.answer = new Answer();
    this.view = new TokenView(part("text"), (index) => {
      part("detail").textContent = tokenLine(this.answer.tokens[index], this.answer.roundOf(index));
    });
    this.drewAtMs = 0;
  }

  /** Ask, and show what comes. Throws ApiError, and AbortError where `signal` stopped it. */
  async go(path, body, signal) {
    this.panel.setAttribute("aria-busy", "true");
    this.answer.startMs = performance.now();
    try {
      for await (const event of stream(path, body, signal)) {
        if (event === null) this.say("The server has nothing to send yet: it waits for a verifier.");
        else this.#take(event);
      }
      this.say(this.#summary());
    } catch (error) {
      this.say(error.name === "AbortError" ? "Stopped here." : "It broke off here.", true);
      throw error;
    } finally {
      this.view.flush();
      this.#draw();
      this.panel.setAttribute("aria-busy", "false");
    }
  }

  /** Say how it stands, below the text. */
  say(text, isBad = false) {
    this.notice.textContent = text;
    this.notice.classList.toggle("bad", isBad);
  }

  #take(event) {
    if (this.answer.tokens.length) this.say("");
    this.view.add(this.answer.add(event));
    if (performance.now() - this.drewAtMs > DRAW_EVERY_MS) this.#draw();
  }

  #draw() {
    this.drewAtMs = performance.now();
    const { tokens } = this.answer;
    const rate = this.answer.rate();
    this.rateText.textContent = `${tokens.length} tokens${rate ? ` · ${rate.toFixed(1)} tokens/s` : ""}`;
    this.onRounds(this.answer);
  }

  #summary() {
    const { metrics, finishReason } = this.answer;
    const said = [`ended: ${finishReason === "length" ? "token limit" : finishReason}`];
    if (metrics) {
      const { speculative_decoding: drafts, specgate } = metrics;
      said.push(`first token after ${Math.round(metrics.time_to_first_token_ms)} ms`);
      if (drafts?.num_draft_tokens) said.push(`${percent(drafts.draft_acceptance_rate)} of the draft tokens accepted`);
      if (specgate.drafter_failures) said.push(`drafters lost: ${specgate.drafter_failures}`);
      if (specgate.verifier_failovers) said.push(`verifiers replaced: ${specgate.verifier_failovers}`);
      said.push(`seed ${specgate.seed}`);
    }
    return said.join(" · ");
  }
}

/** Keep `element` at what `answer` says of drafting in its last round. */
export function tellDrafting(element, answer) {
  const round = answer.rounds.at(-1);
  const text = round && drafting(round, answer.rounds.at(-2)?.confidence ?? 0);
  if (!text || text === element.textContent) return;
  const isLost = round.why_alone === "no_drafter";
  // Rounds change too fast to be read aloud. A lost drafter is worth it.
  element.setAttribute("aria-live", isLost ? "polite" : "off");
  element.textContent = text;
  element.classList.toggle("bad", isLost);
}

/** Return what a race came to, in one line. */
export function raceLine(drafted, alone) {
  const [fast, slow] = [drafted.rate(), alone.rate()];
  const speed = fast && slow ? `With drafts ${(fast / slow).toFixed(2)} times as fast. ` : "";
  if (drafted.text === alone.text) return `${speed}Both texts are the same.`;
  if (drafted.metrics?.specgate.verification === "rejection") return `${speed}The texts are two samples of one distribution.`;
  const ties = (drafted.metrics?.specgate.near_ties ?? 0) + (alone.metrics?.specgate.near_ties ?? 0);
  return `${speed}The texts differ; ${ties} near ties were met.`;
}
