"""What passes and what does not: partings, near ties, and what was never tried."""

import math
from dataclasses import replace

import pytest

from orchestrator.decode.request import GenerationStats
from specgate.types import TokenLogprobs
from specgate_lab.proof.judge import judge_greedy, judge_rejection, judge_seeded
from specgate_lab.proof.laws import Law
from specgate_lab.proof.report import Check, CheckResult, Proof
from specgate_lab.timeline import RequestTimeline

TEXT = RequestTimeline(token_ids=(5, 6, 7, 8), stats=GenerationStats(drafted=4, accepted=3))


def with_margins(trace: RequestTimeline, *margins: float) -> RequestTimeline:
    pairs = zip(trace.token_ids, margins, strict=True)
    entries = (TokenLogprobs(-0.5, ((token_id, -0.5), (99, -0.5 - gap))) for token_id, gap in pairs)
    return replace(trace, logprobs=tuple(entries))


def parted(trace: RequestTimeline, position: int) -> RequestTimeline:
    """Return another token at ``position``, and others after it."""
    kept = trace.token_ids[:position]
    return replace(trace, token_ids=kept + (1,) * (len(trace.token_ids) - position))


def greedy(text: RequestTimeline, margins: tuple[float, ...], dtype: str = "float32") -> Check:
    return judge_greedy("greedy", [with_margins(TEXT, *margins)], {"γ 4": [text]}, dtype)


def test_equal_texts_pass() -> None:
    check = greedy(TEXT, (1.0, 0.5, 2.0, 3.0))
    assert (check.outcome, check.texts, check.equal, check.details) == (CheckResult.PASS, 1, 1, ())
    assert check.figures["margins"] == [pytest.approx([1.0, 0.5, 2.0, 3.0])]


def test_a_parting_fails_and_is_told_with_its_place_and_margin() -> None:
    check = greedy(parted(TEXT, 2), (1.0, 0.5, 0.02, 3.0))
    assert check.outcome is CheckResult.FAIL
    assert check.details == ("prompt 1, γ 4: parts at token 3, 1 in place of 7, margin 0.02",)
    assert check.figures["tokens"] == 3


@pytest.mark.parametrize(
    ("margin", "dtype", "outcome"),
    [
        (0.9e-4, "float32", CheckResult.NEAR_TIE),
        (1.1e-4, "float32", CheckResult.FAIL),
        (0.03125, "float16", CheckResult.NEAR_TIE),
        (0.25, "bfloat16", CheckResult.NEAR_TIE),
        (0.3, "bfloat16", CheckResult.FAIL),
        (0.25, "unheard-of", CheckResult.NEAR_TIE),
    ],
)
def test_a_margin_within_the_limit_explains_a_parting(margin: float, dtype: str, outcome: CheckResult) -> None:
    assert greedy(parted(TEXT, 1), (1.0, margin, 1.0, 1.0), dtype).outcome is outcome


def test_a_near_tie_explains_no_parting_elsewhere_and_no_early_end() -> None:
    assert greedy(parted(TEXT, 1), (1.0, 1.0, 0.0, 0.0)).outcome is CheckResult.FAIL
    early_end = replace(TEXT, token_ids=TEXT.token_ids[:2])
    assert greedy(early_end, (0.0, 0.0, 0.0, 0.0)).outcome is CheckResult.FAIL


def test_near_ties_everywhere_are_none() -> None:
    reference = with_margins(TEXT, 0.0, 0.0, 0.0, 0.0)
    texts = [parted(TEXT, 0), parted(TEXT, 1)]
    assert judge_greedy("greedy", [reference] * 2, {"γ 4": texts}, "float32").outcome is CheckResult.FAIL
    one_place = {"γ 4": [parted(TEXT, 0), TEXT], "γ 8": [parted(TEXT, 0), TEXT]}
    assert judge_greedy("greedy", [reference] * 2, one_place, "float32").outcome is CheckResult.NEAR_TIE
    assert judge_greedy("greedy", [reference] * 2, {"γ 4": texts}, "bfloat16").outcome is CheckResult.NEAR_TIE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_near_tie_excuses_a_verifier_whose_rows_are_the_same_in_every_batch(dtype: str) -> None:
    tied = replace(with_margins(TEXT, 0.0, 0.0, 0.0, 0.0), near_ties=frozenset(range(4)))
    for judge in (judge_greedy, judge_seeded):
        check = judge("exact", [tied], {"γ 4": [parted(TEXT, 1)]}, dtype, batch_invariant=True)
        assert check.outcome is CheckResult.FAIL
        assert judge("exact", [tied], {"γ 4": [TEXT]}, dtype, batch_invariant=True).outcome is CheckResult.PASS


def test_where_nothing_was_drafted_nothing_is_shown() -> None:
    idle = replace(TEXT, stats=GenerationStats())
    assert greedy(idle, (1.0,) * 4).outcome is CheckResult.UNDECIDED
    check = judge_greedy("target alone", [idle], {"transformers": [idle]}, "float32", drafts=False)
    assert check.outcome is CheckResult.PASS


@pytest.mark.parametrize(
    ("tied", "dtype", "outcome"),
    [
        ((), "float32", CheckResult.FAIL),
        ((2,), "float32", CheckResult.FAIL),
        ((1,), "float32", CheckResult.NEAR_TIE),
        ((), "bfloat16", CheckResult.UNDECIDED),
    ],
)
def test_shared_noise_parts_where_the_verifier_counted_a_near_tie(
    tied: tuple[int, ...], dtype: str, outcome: CheckResult
) -> None:
    reference = replace(TEXT, near_ties=frozenset(tied))
    assert judge_seeded("noise", [reference], {"γ 1": [parted(TEXT, 1)]}, dtype).outcome is outcome
    text = replace(parted(TEXT, 1), near_ties=frozenset(tied))
    assert judge_seeded("noise", [TEXT], {"γ 1": [text]}, dtype).outcome is outcome


LAW: Law = ((1, 0.5), (2, 0.5))
ENTRY = TokenLogprobs(math.log(0.5), tuple((token_id, math.log(p)) for token_id, p in LAW))


def sample(token_ids: tuple[int, ...], drafted: int = 3) -> RequestTimeline:
    stats = GenerationStats(drafted=drafted)
    return RequestTimeline(token_ids=token_ids, logprobs=(ENTRY,) * len(token_ids), stats=stats)


def all_texts(drafted: int = 3) -> list[RequestTimeline]:
    """Every text of four tokens equally often, as the law has them."""
    ids = [tuple(1 + (number >> bit & 1) for bit in range(4)) for number in range(16)]
    return [sample(one, drafted) for one in ids for _ in range(20)]


def rejection(speculated: list[RequestTimeline], alone: list[RequestTimeline]) -> Check:
    return judge_rejection({"prompt 1": LAW}, {"prompt 1": alone}, {"prompt 1": speculated}, {"none": speculated})


def test_rejection_passes_on_the_right_law() -> None:
    check = rejection(all_texts(), all_texts())
    assert check.outcome is CheckResult.PASS
    assert [test["p"] for test in check.figures["tests"]] == [1.0] * 4
    assert rejection(all_texts(drafted=0), all_texts()).outcome is CheckResult.UNDECIDED
    assert rejection(all_texts()[:1], all_texts()[:1]).outcome is CheckResult.UNDECIDED


def test_rejection_fails_on_another_law_and_names_the_tests() -> None:
    speculated = [trace for trace in all_texts() if trace.token_ids[0] == 1 or trace.token_ids[1] == 2]
    check = rejection(speculated, all_texts())
    assert check.outcome is CheckResult.FAIL
    assert any(detail.startswith("prompt 1, first token: p ") for detail in check.details)


def test_the_verdict_is_that_of_the_worst_check() -> None:
    passed = Check("a", CheckResult.PASS, "", texts=9, equal=9)
    tied = Check("b", CheckResult.NEAR_TIE, "", texts=2, equal=1)
    open_, failed = Check("c", CheckResult.UNDECIDED, ""), Check("d", CheckResult.FAIL, "", texts=4)
    sound = Proof({}, [passed, tied, Check("e", CheckResult.SKIPPED, "")])
    undecided, broken = Proof({}, [passed, open_]), Proof({}, [passed, open_, failed])
    assert [proof.holds for proof in (sound, undecided, broken)] == [True, False, False]
    assert "10 of 11 texts are exactly what the target alone writes; the other 1 part" in sound.verdict
    assert undecided.verdict.startswith("Not proved: c ")
    assert broken.verdict.startswith("NOT lossless: d failed; 9 of 13 texts")
