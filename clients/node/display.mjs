// Deltas in colour, choices one after the other, and a closing line of statistics for each.
const COLORS = { ACCEPTED: 32, RECOVERED: 33, BONUS: 36, ACCEPTED_LAYER_SKIP: 92, ACCEPTED_SUFFIX: 35 };
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

/** Writes the deltas of a call to a stream; `ids` shows token ids instead of text. */
export class Display {
  #choices = new Map();
  #turn = 0;
  #start = performance.now();

  constructor(stream, { ids = false, several = false }) {
    Object.assign(this, { stream, ids, several, color: wantsColor(stream) });
  }

  /** Show a delta at once where it is the turn of its choice, which is when all before it have ended. */
  show(delta) {
    const { index } = delta;
    if (!this.#choices.has(index)) this.#choices.set(index, { text: index ? '\n' : '', finished: false });
    const choice = this.#choices.get(index);
    choice.text += this.#painted(delta);
    if (delta.finish_reason !== 'FINISH_REASON_UNSPECIFIED') {
      const name = this.several ? `choice ${index} · ` : '';
      choice.text += `\n\n${name}${summary(delta, (performance.now() - this.#start) / 1000)}\n`;
      choice.finished = true;
    }
    this.#write(this.#choices.get(this.#turn));
    while (this.#choices.get(this.#turn)?.finished) this.#write(this.#choices.get(++this.#turn));
  }

  /** Show what waits for its turn, after a stream that broke off. */
  showRest() {
    for (const choice of this.#choices.values()) this.#write(choice);
  }

  #write(choice) {
    if (choice?.text) this.stream.write(choice.text);
    if (choice) choice.text = '';
  }

  /** A delta is what one verdict committed: accepted draft tokens, then one of the target's own. Its text cannot be
   * taken apart without the tokenizer, so it takes the colour of its end. Token ids have a colour each. */
  #painted(delta) {
    const sources = delta.sources.map((source) => source.replace('TOKEN_SOURCE_', ''));
    if (this.ids) return delta.token_ids.map((id, at) => this.#colored(`${id} `, sources[at])).join('');
    // A model's output must not steer a terminal.
    const text = this.stream.isTTY ? delta.text.replace(CONTROL, '\ufffd') : delta.text;
    return this.#colored(text, sources.at(-1));
  }

  #colored(text, source) {
    const code = COLORS[source];
    return this.color && code && text ? `\x1b[${code}m${text}\x1b[0m` : text;
  }
}

/** NO_COLOR and FORCE_COLOR decide before the terminal does. */
function wantsColor(stream) {
  if (process.env.NO_COLOR) return false;
  return Boolean(process.env.FORCE_COLOR) || stream.isTTY === true;
}

function summary({ stats, finish_reason: reason }, seconds) {
  const percent = (part, whole) => `${Math.round((100 * part) / Math.max(whole, 1))}%`;
  const parts = [
    `${stats.completion_tokens} tokens`,
    `${(stats.completion_tokens / seconds).toFixed(1)} tokens/s`,
    stats.drafted_tokens ? `acceptance ${percent(stats.accepted_tokens, stats.drafted_tokens)}` : 'nothing drafted',
    `${(stats.completion_tokens / Math.max(stats.target_forwards, 1)).toFixed(2)} tokens per target forward`,
    `solo ${percent(stats.solo_tokens, stats.completion_tokens)}`,
    `finished by ${reason.replace('FINISH_REASON_', '').toLowerCase()}`,
    `seed ${stats.seed}`,
  ];
  return parts.join(' · ');
}
