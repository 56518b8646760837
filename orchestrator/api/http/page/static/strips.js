// Four strips on the rounds of one answer, as SVG: speed, acceptance by position, the gate, γ.

import { percent } from "./words.js";

const WIDTH = 300;
const HEIGHT = 54;
const SHOWN_ROUNDS = 75;
const RATE_BINS = 40;

export class Strips {
  constructor(parent) {
    this.rate = new Strip(parent, "rate", "Tokens/s over time");
    this.positions = new Strip(parent, "positions", "Accepted, by position");
    this.gate = new Strip(parent, "gate", "Confidence (orange: gate closed)");
    this.gamma = new Strip(parent, "gamma", "γ: drafted, and accepted of it");
  }

  /** Draw what `answer` has so far. */
  draw(answer) {
    this.#drawRate(answer);
    this.#drawPositions(answer.rounds);
    this.#drawGate(answer.rounds);
    this.#drawGamma(answer.rounds);
  }

  #drawRate(answer) {
    const { tokens } = answer;
    if (tokens.length < 2) return this.rate.show([], "");
    const endMs = tokens.at(-1).ms;
    const bins = new Array(RATE_BINS).fill(0);
    for (const { ms } of tokens) bins[Math.min(RATE_BINS - 1, Math.floor((ms / endMs) * RATE_BINS))]++;
    const most = Math.max(...bins);
    const points = bins.map((count, i) => `${((i + 0.5) / RATE_BINS) * WIDTH},${HEIGHT - 2 - (count / most) * (HEIGHT - 6)}`);
    const mean = answer.rate();
    this.rate.show([shape("polyline", { class: "rate-line", points: points.join(" ") })], mean ? `mean ${mean.toFixed(1)}` : "");
  }

  #drawPositions(rounds) {
    const judged = [];
    const accepted = [];
    for (const round of rounds) {
      // What follows a rejected token says nothing of the draft.
      const rejected = round.accepted_tokens < round.tokens && round.accepted_tokens < round.draft_tokens;
      for (let i = 0; i < round.accepted_tokens + rejected; i++) {
        judged[i] = (judged[i] ?? 0) + 1;
        accepted[i] = (accepted[i] ?? 0) + (i < round.accepted_tokens);
      }
    }
    const width = WIDTH / Math.max(judged.length, 1);
    const bars = judged.map((all, i) => bar("accepted", i * width + 2, width - 4, accepted[i] / all));
    this.positions.show(bars, judged.map((all, i) => percent(accepted[i] / all)).slice(0, 4).join(" "));
  }

  #drawGate(rounds) {
    const shown = rounds.slice(-SHOWN_ROUNDS);
    const kind = (round) => ({ gate: "gate", no_drafter: "lost" })[round.why_alone] ?? (round.draft_tokens ? "open" : "alone");
    this.gate.show(columns(shown, (round) => [[kind(round), round.confidence]]), shareOf(rounds, (round) => !round.draft_tokens, "alone"));
  }

  #drawGamma(rounds) {
    const shown = rounds.slice(-SHOWN_ROUNDS);
    const most = Math.max(1, ...shown.map((round) => round.draft_tokens));
    const both = ({ draft_tokens, accepted_tokens }) => [["drafted", draft_tokens / most], ["accepted", accepted_tokens / most]];
    const drafted = rounds.filter((round) => round.draft_tokens);
    const mean = drafted.reduce((sum, round) => sum + round.draft_tokens, 0) / (drafted.length || 1);
    this.gamma.show(columns(shown, both), drafted.length ? `mean ${mean.toFixed(1)}, now ${shown.at(-1).draft_tokens}` : "");
  }
}

class Strip {
  constructor(parent, name, title) {
    const figure = parent.appendChild(document.createElement("figure"));
    figure.id = `strip-${name}`;
    figure.setAttribute("aria-label", title);
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.append(title);
    this.figureText = caption.appendChild(document.createElement("output"));
    this.figureText.setAttribute("aria-live", "off");
    this.svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    figure.append(this.svg);
  }

  show(shapes, text) {
    this.svg.replaceChildren(...shapes);
    this.figureText.textContent = text;
  }
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function bar(kind, x, width, share) {
  const height = Math.max(share * (HEIGHT - 4), 1);
  return shape("rect", { class: `bar-${kind}`, x, width: Math.max(width, 1), y: HEIGHT - 1 - height, height });
}

function columns(rounds, barsOf) {
  const width = WIDTH / SHOWN_ROUNDS;
  return rounds.flatMap((round, i) =>
    barsOf(round).filter(([, share]) => share > 0).map(([kind, share]) => bar(kind, i * width + 0.5, width - 1, share)),
  );
}

function shareOf(rounds, matches, word) {
  return rounds.length ? `${percent(rounds.filter(matches).length / rounds.length)} ${word}` : "";
}
