"""From what was seen to what it shows: the rules by which a check passes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from specgate.types import TokenLogprobs
from specgate_lab.proof.laws import (
    LEVEL,
    Law,
    LawTest,
    Text,
    corrected,
    first_token_test,
    rank_test,
    two_sample_test,
)
from specgate_lab.proof.plan import JOINT_TOKENS
from specgate_lab.proof.report import Check, CheckResult
from specgate_lab.proof.texts import (
    Parting,
    TextComparison,
    TextRecord,
    by_count,
    by_margin,
    compare,
    near_tie_limit,
    never,
)

TIE_PLACES_PER_TOKEN = 1e-3
"""In float32 a near tie comes once in some ten thousand tokens; many more would excuse what is no tie."""
_SHOWN = 3

Runs = Mapping[str, Sequence[TextRecord]]
"""The texts of every setting, one a prompt."""


def judge_greedy(
    name: str,
    references: Sequence[TextRecord],
    runs: Runs,
    dtype: str,
    *,
    drafts: bool = True,
    batch_invariant: bool = False,
) -> Check:
    """Judge texts of temperature 0: equal, or parted where the target's two best logits nearly tie.

    Args:
        drafts: whether the runs are to draft; what the target does without a draft shows nothing of it otherwise.
        batch_invariant: all texts are of one verifier that says so: no near tie excuses a parting.
    """
    limit = near_tie_limit(dtype)
    seen = compare(references, runs, never if batch_invariant else by_margin(limit))
    margins = [margin for reference in references for margin in reference.margins]
    outcome = _outcome(seen, references, dtype, drafts=drafts)
    figures = {
        "near_tie_limit": limit,
        "near_ties": sum(margin < limit for margin in margins),
        "margins": [reference.margins for reference in references],
    }
    nearest = f"smallest margin {min(margins):.2g}" if margins else "margins unknown"
    message = f"{_counted(seen)}; {nearest}, {figures['near_ties']} near ties"
    return _check(name, outcome, message, seen, figures)


def judge_seeded(
    name: str, references: Sequence[TextRecord], runs: Runs, dtype: str, *, batch_invariant: bool = False
) -> Check:
    """Judge texts of one seed each: equal, or parted where the verifier counted a near tie; see ``judge_greedy``.

    Its count is made for float32. Under coarser numbers a parting that it does not explain is no proof of a fault.
    """
    seen = compare(references, runs, never if batch_invariant else by_count)
    outcome = _outcome(seen, references, dtype, drafts=True)
    if outcome is CheckResult.FAIL and dtype != "float32" and not batch_invariant:
        outcome = CheckResult.UNDECIDED
    near_ties = sum(len(reference.near_ties) for reference in references)
    message = f"{_counted(seen)}; {near_ties} near ties"
    if outcome is CheckResult.UNDECIDED and seen.drafted:
        message += f"; {dtype} rounds by more than a near tie, float32 would decide it"
    return _check(name, outcome, message, seen, {"near_ties": near_ties})


def _outcome(seen: TextComparison, references: Sequence[TextRecord], dtype: str, *, drafts: bool) -> CheckResult:
    reference_tokens = sum(len(reference.token_ids) for reference in references)
    too_many = seen.tie_places > max(1.0, TIE_PLACES_PER_TOKEN * reference_tokens)
    if seen.unexplained or (too_many and dtype == "float32"):
        return CheckResult.FAIL
    if drafts and not seen.drafted:
        return CheckResult.UNDECIDED
    return CheckResult.NEAR_TIE if seen.partings else CheckResult.PASS


def _counted(seen: TextComparison) -> str:
    return f"{seen.equal} of {seen.texts} texts equal, {seen.tokens} tokens compared{_drafted(seen)}"


def _drafted(seen: TextComparison) -> str:
    return f", {seen.accepted} of {seen.drafted} drafts accepted" if seen.drafted else ""


def _check(name: str, outcome: CheckResult, message: str, seen: TextComparison, figures: Mapping[str, object]) -> Check:
    # The worst first: what no tie explains.
    worst = sorted(seen.partings, key=lambda parting: parting.near_tie)[:_SHOWN]
    details = [_told(parting) for parting in worst]
    if len(seen.partings) > _SHOWN:
        details.append(f"and {len(seen.partings) - _SHOWN} more")
    return Check(name, outcome, message, tuple(details), seen.texts, seen.equal, {**seen.to_object(), **figures})


def _told(parting: Parting) -> str:
    place = f"prompt {parting.prompt + 1}, {parting.setting}: parts at token {parting.position + 1}"
    tokens = f"{parting.found} in place of {parting.expected}"
    margin = "" if parting.margin is None else f", margin {parting.margin:.2g}"
    return f"{place}, {tokens}{margin}{', a near tie' if parting.near_tie else ''}"


def law_of(entry: TokenLogprobs) -> Law:
    """Return the likeliest tokens' probabilities."""
    return tuple((token_id, math.exp(logprob)) for token_id, logprob in entry.top)


def judge_rejection(
    laws: Mapping[str, Law],
    alone: Mapping[str, Sequence[TextRecord]],
    speculated: Mapping[str, Sequence[TextRecord]],
    by_gate: Mapping[str, Sequence[TextRecord]],
) -> Check:
    """Judge the law of speculation by rejection.

    Args:
        laws: the target's law of the first token after each prompt.
        alone, speculated: the samples of both, by the same prompts.
        by_gate: those of speculation again, with log-probabilities, by the gate that they were made under.
    """
    tests = [first_token_test(f"{name}, first token", _first(speculated[name]), law) for name, law in laws.items()]
    tests += [
        two_sample_test(f"{name}, {JOINT_TOKENS} tokens", _texts(speculated[name]), _texts(alone[name]))
        for name in laws
    ]
    every = [trace for traces in speculated.values() for trace in traces]
    ranked = {"every gate": every, **{f"gate {gate}": traces for gate, traces in by_gate.items() if traces}}
    tests += [rank_test(f"ranks, {name}", _seen(traces)) for name, traces in ranked.items()]
    drafted, accepted = sum(trace.drafted for trace in every), sum(trace.accepted for trace in every)
    return _law_check(corrected(tests), len(every), drafted, accepted)


def _law_check(tests: Sequence[LawTest], samples: int, drafted: int, accepted: int) -> Check:
    worst = min(tests, key=lambda test: test.corrected_p)
    failed = [test for test in tests if test.corrected_p < LEVEL]
    found = [test.findable for test in tests if math.isfinite(test.findable)]
    power = (
        f"a deviation of {min(found):.1%} to {max(found):.1%} of probability would have been found"
        if found
        else ("too few samples to find any deviation")
    )
    outcome = CheckResult.FAIL if failed else CheckResult.PASS if drafted and found else CheckResult.UNDECIDED
    message = (
        f"{len(tests)} tests, smallest p {worst.p:.2g} ({worst.corrected_p:.2g} corrected, limit {LEVEL}); "
        f"{samples} texts, {accepted} of {drafted} drafts accepted; {power}"
    )
    details = tuple(f"{test.name}: p {test.p:.2g}, {test.corrected_p:.2g} corrected" for test in failed)
    figures = {"level": LEVEL, "drafted": drafted, "accepted": accepted, "tests": [test.to_object() for test in tests]}
    return Check("rejection, law", outcome, message, details, figures=figures)


def _first(traces: Sequence[TextRecord]) -> Counter[int]:
    return Counter(trace.token_ids[0] for trace in traces)


def _texts(traces: Sequence[TextRecord]) -> list[Text]:
    return [trace.token_ids[:JOINT_TOKENS] for trace in traces]


def _seen(traces: Sequence[TextRecord]) -> list[tuple[int, Law]]:
    return [
        (token_id, law_of(entry))
        for trace in traces
        for token_id, entry in zip(trace.token_ids, trace.logprobs, strict=True)
    ]
