"""From what was seen to what it shows: the rules by which a check passes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from specgate.types import TokenLogprobs
from specgate_lab.proof.laws import LEVEL, Law, corrected, first_token_test, rank_test, two_sample_test
from specgate_lab.proof.plan import JOINT_TOKENS
from specgate_lab.proof.report import Check, CheckResult
from specgate_lab.proof.texts import (
    TextComparison,
    by_count,
    by_margin,
    compare,
    drafts_of,
    margins_of,
    near_tie_limit,
    never,
)
from specgate_lab.timeline import RequestTimeline

TIE_PLACES_PER_TOKEN = 1e-3
"""In float32 a near tie comes once in some ten thousand tokens; many more would excuse what is no tie."""
_SHOWN = 3

Runs = Mapping[str, Sequence[RequestTimeline]]
"""Texts by what they were made with, one a prompt or many of one prompt."""


def judge_greedy(
    name: str,
    references: Sequence[RequestTimeline],
    runs: Runs,
    dtype: str,
    *,
    drafts: bool = True,
    batch_invariant: bool = False,
) -> Check:
    """Judge texts of temperature 0: equal, or parted where the target's two best logits nearly tie.

    Args:
        drafts: whether the runs draft; a run that should and does not shows nothing.
        batch_invariant: all texts are of one verifier that says so: no near tie excuses a parting.
    """
    limit = near_tie_limit(dtype)
    seen = compare(references, runs, never if batch_invariant else by_margin(limit))
    margins = [margins_of(reference) for reference in references]
    every = [margin for own in margins for margin in own]
    near_ties = sum(margin < limit for margin in every)
    nearest = f"smallest margin {min(every):.2g}" if every else "margins unknown"
    figures = {"near_tie_limit": limit, "near_ties": near_ties, "margins": margins}
    outcome = _outcome(seen, references, dtype, drafts=drafts)
    return _check(name, outcome, f"{seen}; {nearest}, {near_ties} near ties", seen, figures)


def judge_seeded(
    name: str, references: Sequence[RequestTimeline], runs: Runs, dtype: str, *, batch_invariant: bool = False
) -> Check:
    """Judge texts of one seed each: equal, or parted where the verifier counted a near tie; see ``judge_greedy``.

    Its count is made for float32. Under coarser numbers a parting that it does not explain is no proof of a fault.
    """
    seen = compare(references, runs, never if batch_invariant else by_count)
    outcome = _outcome(seen, references, dtype, drafts=True)
    near_ties = sum(len(reference.near_ties) for reference in references)
    message = f"{seen}; {near_ties} near ties"
    if outcome is CheckResult.FAIL and dtype != "float32" and not batch_invariant:
        outcome = CheckResult.UNDECIDED
        message += f"; {dtype} rounds by more than a near tie, float32 would decide it"
    return _check(name, outcome, message, seen, {"near_ties": near_ties})


def _outcome(seen: TextComparison, references: Sequence[RequestTimeline], dtype: str, *, drafts: bool) -> CheckResult:
    reference_tokens = sum(len(reference.token_ids) for reference in references)
    too_many = seen.tie_places > max(1.0, TIE_PLACES_PER_TOKEN * reference_tokens)
    if seen.unexplained or (too_many and dtype == "float32"):
        return CheckResult.FAIL
    if drafts and not seen.drafted:
        return CheckResult.UNDECIDED
    return CheckResult.NEAR_TIE if seen.partings else CheckResult.PASS


def _check(name: str, outcome: CheckResult, message: str, seen: TextComparison, figures: Mapping[str, object]) -> Check:
    # First the partings that no tie explains.
    worst = sorted(seen.partings, key=lambda parting: parting.near_tie)
    details = [str(parting) for parting in worst[:_SHOWN]]
    if len(worst) > _SHOWN:
        details.append(f"and {len(worst) - _SHOWN} more")
    return Check(name, outcome, message, tuple(details), seen.texts, seen.equal, {**seen.to_object(), **figures})


def law_of(entry: TokenLogprobs) -> Law:
    """Return the likeliest tokens' probabilities."""
    return tuple((token_id, math.exp(logprob)) for token_id, logprob in entry.top)


def judge_rejection(laws: Mapping[str, Law], alone: Runs, speculated: Runs, by_gate: Runs) -> Check:
    """Judge the law of speculation by rejection.

    Args:
        laws: the target's law of the first token after each prompt.
        alone, speculated: the samples of both, by the same prompts.
        by_gate: those of speculation again, with log-probabilities, by the gate that they were made under.
    """
    every = [text for texts in speculated.values() for text in texts]
    drafted, accepted = drafts_of(every)
    firsts = {name: Counter(text.token_ids[0] for text in speculated[name]) for name in laws}
    ranked = {"every gate": every, **{f"gate {gate}": texts for gate, texts in by_gate.items() if texts}}
    tests = corrected(
        [
            *(first_token_test(f"{name}, first token", firsts[name], law) for name, law in laws.items()),
            *(
                two_sample_test(f"{name}, {JOINT_TOKENS} tokens", _beginnings(speculated[name]), _beginnings(own))
                for name, own in alone.items()
            ),
            *(rank_test(f"ranks, {name}", _tokens_with_laws(texts)) for name, texts in ranked.items()),
        ]
    )
    worst = min(tests, key=lambda test: test.corrected_p)
    failed = [test for test in tests if test.corrected_p < LEVEL]
    found = [test.findable for test in tests if math.isfinite(test.findable)]
    power = "too few samples to find any deviation"
    if found:
        power = f"a deviation of {min(found):.1%} to {max(found):.1%} of probability would have been found"
    outcome = CheckResult.FAIL if failed else CheckResult.PASS if drafted and found else CheckResult.UNDECIDED
    message = (
        f"{len(tests)} tests, smallest p {worst.p:.2g} ({worst.corrected_p:.2g} corrected, limit {LEVEL}); "
        f"{len(every)} texts, {accepted} of {drafted} drafts accepted; {power}"
    )
    details = tuple(f"{test.name}: p {test.p:.2g}, {test.corrected_p:.2g} corrected" for test in failed)
    figures = {"level": LEVEL, "drafted": drafted, "accepted": accepted, "tests": [test.to_object() for test in tests]}
    return Check("rejection, law", outcome, message, details, figures=figures)


def _beginnings(texts: Sequence[RequestTimeline]) -> list[tuple[int, ...]]:
    return [text.token_ids[:JOINT_TOKENS] for text in texts]


def _tokens_with_laws(texts: Sequence[RequestTimeline]) -> list[tuple[int, Law]]:
    return [
        (token_id, law_of(entry))
        for text in texts
        for token_id, entry in zip(text.token_ids, text.logprobs, strict=True)
    ]
