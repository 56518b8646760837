// What sources and reasons are called on the page.

export const SOURCES = {
  accepted: "drafted, and accepted by the target",
  accepted_layer_skip: "drafted by the target without some of its layers, and accepted",
  accepted_suffix: "copied from the text so far, and accepted",
  recovered: "the target's own, after it rejected a draft token",
  bonus: "the target's own, after it accepted a whole proposal",
  solo: "the target's own, with no draft",
};

export const SHORT = {
  accepted: "accepted draft",
  accepted_layer_skip: "accepted, layer skip",
  accepted_suffix: "accepted copy",
  recovered: "recovered",
  bonus: "bonus",
  solo: "solo",
};

const ALONE = {
  off: () => "γ is 0: the target decodes alone.",
  gate: (sure) => `The gate is closed: the target was ${percent(sure)} sure of the token before. It decodes alone.`,
  no_gain: () => "The gate auto expects no gain from drafts here. The target decodes alone.",
  not_yet: () => "No draft had arrived for this place yet. The target decodes alone.",
  no_copy: () => "The text repeats nothing here, so there is no draft. The target decodes alone.",
  no_drafter: () => "No drafter answers. The target goes on alone.",
};

export const percent = (share) => `${Math.round(100 * share)} %`;

/** Return what to say of drafting after `round`, of which `sure` is how sure the target was before it; "": nothing new. */
export function drafting(round, sure) {
  if (round.draft_tokens) return `Drafting: the gate is open. The last proposal had ${round.draft_tokens} tokens.`;
  return ALONE[round.why_alone]?.(sure) ?? "";
}

/** Return one line on a token; `round` has brought it. */
export function tokenLine(token, round) {
  const parts = [`“${visible(token.text)}”`, SOURCES[token.source] ?? token.source];
  if (token.logprob !== null) parts.push(`probability ${Math.exp(token.logprob).toFixed(3)}`);
  if (round) {
    const drafted = round.draft_tokens ? `${round.accepted_tokens} of ${round.draft_tokens} accepted` : "no draft";
    parts.push(`round ${round.round}: ${drafted}`, `confidence behind it ${round.confidence.toFixed(3)}`);
    if (round.from_run_ahead) parts.push("drafted by run-ahead");
  }
  return parts.join(" · ");
}

const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(no text)";
