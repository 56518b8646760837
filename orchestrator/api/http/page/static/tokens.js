// The tokens of one answer: what came, and as coloured spans.

const SHOW_EVERY_MS = 100;
const NEAR_END_PX = 60;
/** What a part of a character reads as. */
const PART = "\ufffd";

/** Tokens and rounds of one answer, as its chunks bring them. */
export class Answer {
  constructor() {
    this.tokens = [];
    this.numFirst = 0;
    this.rounds = [];
    this.text = "";
    this.finishReason = null;
    this.metrics = null;
    this.startMs = performance.now();
  }

  /** Take over a chunk; return its new tokens. */
  add(chunk) {
    this.metrics = chunk.metrics ?? this.metrics;
    const choice = chunk.choices[0];
    if (!choice) return [];
    this.finishReason = choice.finish_reason ?? this.finishReason;
    this.rounds.push(...(choice.rounds ?? []));
    const text = choice.text ?? choice.delta?.content ?? "";
    this.text += text;
    const made = withText(pieces(choice), text, choice.sources ?? []);
    const ms = performance.now() - this.startMs;
    made.forEach((token, i) => Object.assign(token, { ms, index: this.tokens.length + i }));
    this.numFirst ||= made.length;
    this.tokens.push(...made);
    return made;
  }

  /** Return the round that brought token `index`: rounds tell how many tokens each of them has. */
  roundOf(index) {
    let end = 0;
    return this.rounds.find((round) => (end += round.tokens) > index);
  }

  /** Tokens a second after the first chunk: with drafts that has several tokens, and without it has one. */
  rate() {
    const [first, last] = [this.tokens[0], this.tokens.at(-1)];
    return last && last.ms > first.ms ? ((this.tokens.length - this.numFirst) / (last.ms - first.ms)) * 1000 : null;
  }
}

function pieces(choice) {
  const told = choice.logprobs;
  if (told?.content) return told.content.map(({ token, logprob }) => ({ piece: token, logprob }));
  return (told?.tokens ?? []).map((piece, i) => ({ piece, logprob: told.token_logprobs[i] }));
}

/** Give each token its part of `text`. */
function withText(told, text, sources) {
  const pieces = told.map(({ piece }) => piece);
  const texts = pieces.join("") === text ? pieces : partsOf(text, pieces);
  return told.map(({ logprob }, i) => ({ text: texts[i], logprob, source: sources[i] ?? "solo" }));
}

/**
 * Return the part of `text` that each of `pieces` has. A character that is spread over tokens is the first one's, and
 * a special token has no text.
 */
function partsOf(text, pieces) {
  const parts = pieces.map(() => "");
  let rest = text;
  let unread = -1;
  pieces.forEach((piece, i) => {
    const at = piece.includes(PART) ? -1 : rest.indexOf(piece);
    if (at < 0 || (unread < 0 && at > 0)) {
      unread = unread < 0 ? i : unread;
      return;
    }
    if (unread >= 0) parts[unread] = rest.slice(0, at);
    parts[i] = piece;
    rest = rest.slice(at + piece.length);
    unread = -1;
  });
  if (pieces.length) parts[unread < 0 ? pieces.length - 1 : unread] += rest;
  return parts;
}

/** Spans of an answer's tokens, one of which may be looked at: by the pointer, by touch or by the arrow keys. */
export class TokenView {
  constructor(element, onLook) {
    this.element = element;
    this.onLook = onLook;
    this.waiting = [];
    this.at = -1;
    // Not pointerover: that comes, too, where the text scrolls below a pointer that rests.
    element.addEventListener("pointermove", (event) => this.#lookAt(event.target));
    element.addEventListener("click", (event) => this.#lookAt(event.target));
    element.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Show tokens soon. Not with every frame: what a browser draws may be a core that a model on this machine lacks. */
  add(tokens) {
    if (!this.waiting.length && tokens.length) setTimeout(() => this.flush(), SHOW_EVERY_MS);
    this.waiting.push(...tokens);
  }

  flush() {
    // At the end of an answer all is shown before the timer comes, which must not scroll then.
    if (!this.waiting.length) return;
    const spans = this.waiting.map((token) => {
      const span = document.createElement("span");
      span.className = `t ${token.source}`;
      span.dataset.index = token.index;
      span.textContent = token.text;
      return span;
    });
    this.waiting = [];
    const page = document.documentElement;
    const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < NEAR_END_PX;
    this.element.append(...spans);
    if (atEnd) page.scrollTop = page.scrollHeight;
  }

  /** Show the tokens once more, each `ms` after the start as it came. Resolves at the end. */
  replay(tokens) {
    const spans = [...this.element.children];
    spans.forEach((span) => span.classList.add("later"));
    const startMs = performance.now();
    return new Promise((resolve) => {
      let next = 0;
      const show = () => {
        for (; next < spans.length && tokens[next].ms <= performance.now() - startMs; next++) spans[next].classList.remove("later");
        if (next < spans.length) requestAnimationFrame(show);
        else resolve();
      };
      show();
    });
  }

  #lookAt(span) {
    const index = Number(span.dataset.index);
    if (Number.isNaN(index) || index === this.at) return;
    this.element.querySelector(".at")?.classList.remove("at");
    span.classList.add("at");
    this.at = index;
    this.onLook(index);
  }

  #move(event) {
    const spans = this.element.children;
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (spans[to]) this.#lookAt(spans[to]);
  }
}
