// Deltas in colour, and the closing line of statistics.
const COLORS = { ACCEPTED: 32, RECOVERED: 33, BONUS: 36, SOLO: 0 };
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

/** Return whether a stream takes colours; NO_COLOR and FORCE_COLOR decide first. */
export function wantsColor(stream) {
  if (process.env.NO_COLOR) return false;
  return Boolean(process.env.FORCE_COLOR) || stream.isTTY === true;
}

/** Return a delta as it is shown: text, or token ids one by one.
 *
 * A delta is what one verdict committed: accepted draft tokens, then one of the target's own. Its text cannot be taken
 * apart without the tokenizer, so it takes the colour of its end: recovered (yellow) where the target corrected the
 * draft, bonus (cyan) where all of the draft was accepted, none where the target was alone. */
export function paint(delta, { ids, color, terminal }) {
  const sources = delta.sources.map((source) => source.replace('TOKEN_SOURCE_', ''));
  if (ids) return delta.token_ids.map((id, index) => colored(`${id} `, sources[index], color)).join('');
  // A model's output must not steer a terminal.
  const text = terminal ? delta.text.replace(CONTROL, '\ufffd') : delta.text;
  return colored(text, sources.at(-1), color);
}

function colored(text, source, color) {
  const code = COLORS[source];
  return color && code && text ? `\x1b[${code}m${text}\x1b[0m` : text;
}

/** Return the closing line. */
export function summary(delta, seconds) {
  const { stats } = delta;
  const percent = (part, whole) => `${Math.round((100 * part) / whole)}%`;
  const parts = [
    `${stats.completion_tokens} tokens`,
    `${(stats.completion_tokens / seconds).toFixed(1)} tokens/s`,
    stats.drafted_tokens ? `acceptance ${percent(stats.accepted_tokens, stats.drafted_tokens)}` : 'nothing drafted',
    `${(stats.completion_tokens / stats.target_forwards).toFixed(2)} tokens per target forward`,
    `solo ${percent(stats.solo_tokens, stats.completion_tokens)}`,
    `finished by ${delta.finish_reason.replace('FINISH_REASON_', '').toLowerCase()}`,
    `seed ${stats.seed}`,
  ];
  return parts.join(' · ');
}
