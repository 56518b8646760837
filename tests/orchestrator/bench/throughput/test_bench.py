"""The benchmark: fair turns, right sums, and a baseline that is what it says."""

import io
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.bench.peers.bare_loop import BareLoopProcess
from orchestrator.bench.throughput.agreement import TextAgreement, agreement_of, promised_agreement
from orchestrator.bench.throughput.plots import draw_rows
from orchestrator.bench.throughput.rows import Row, rows_of
from orchestrator.bench.throughput.runs import WARM_UP_TOKENS, Decode, measure, turns
from orchestrator.bench.throughput.samples import PAIR_ROWS, ROW_NAMES, SCHEDULED_ROWS, Sample, scheduled
from orchestrator.bench.throughput.table import print_rows
from orchestrator.bench.workload.prompts import BENCH_PROMPTS, DEMO_PROMPTS
from orchestrator.bench.workload.requests import bench_request, full_length
from orchestrator.decode.request import GenerationRequest, GenerationStats
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.request_options import BUNDLED_GAMMA, DraftingOptions, SamplingOptions
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.types import SamplingParams, Verification
from tests.support.models import write_llama

GREEDY = SamplingParams(temperature=0.0)


def test_every_row_takes_every_turn_and_each_comes_first_equally_often() -> None:
    names = ("a", "b", "c")
    order = [(repeat, *turn) for repeat in range(2) for turn in turns(names, 3, repeat)]
    assert len(set(order)) == len(order) == 3 * 3 * 2
    firsts = [order[index][2] for index in range(0, len(order), len(names))]
    assert Counter(firsts) == {"a": 2, "b": 2, "c": 2}


async def test_the_warm_up_is_short_and_thrown_away() -> None:
    asked: list[tuple[str, int]] = []

    def way(name: str) -> Decode:
        async def decode(request: GenerationRequest) -> Sample:
            asked.append((name, request.max_tokens))
            return Sample(0, 0, request.prompt_token_ids, 1, 1.0)

        return decode

    requests = [GenerationRequest((prompt,), max_tokens=99) for prompt in (7, 8)]
    ticks: list[None] = []
    ways = {"a": way("a"), "b": way("b")}
    samples = await measure(ways, requests, 3, lambda: ticks.append(None))
    assert asked[:2] == [("a", WARM_UP_TOKENS), ("b", WARM_UP_TOKENS)]
    assert {tokens for _, tokens in asked[2:]} == {99}
    assert len(ticks) == len(asked) - 2 == 2 * 2 * 3
    assert [(one.prompt, one.repeat, one.token_ids) for one in samples["a"]] == [
        (prompt, repeat, (7 + prompt,)) for repeat in range(3) for prompt in range(2)
    ]
    in_a_hurry = await measure(ways, requests, 3, lambda: None, budget_s=0.0)
    assert [len(one) for one in in_a_hurry.values()] == [2, 2]


ONE_ROUND = GenerationStats(
    rounds=1,
    draft_lengths=[4],
    prepared=[False],
    draft_us=[40],
    verify_us=[100],
    round_us=[150],
    forwards_us=[(5, 100)],
    outcomes=Counter({(4, 4): 1}),
)


def sample(repeat: int, tokens: int, seconds: float, stats: GenerationStats | None = None) -> Sample:
    return Sample(0, repeat, (1,), tokens, seconds, stats, traffic_bytes=240 if stats else None)


def rows() -> dict[str, Row]:
    stats = GenerationStats(
        draft_lengths=[4, 4],
        forwards_us=[(1, 90), (5, 95), (5, 95), (1, 90)],
        outcomes=Counter({(4, 4): 1, (4, 2): 1}),
        completion_tokens=10,
        drafted=8,
        accepted=6,
        solo_tokens=2,
        target_forwards=4,
        near_ties=1,
        rounds=2,
        prepared=[False, True],
        draft_us=[10, 20],
        verify_us=[100, 100],
        round_us=[115, 135],
    )
    samples = {
        "target-hf": [sample(0, 100, 1.0), sample(1, 100, 2.0), sample(2, 100, 1.0)],
        "target": [sample(0, 50, 1.0), sample(0, 30, 1.0)],
        "spec": [sample(0, 80, 1.0, stats), sample(1, 90, 1.0, stats), sample(2, 85, 1.0, stats)],
    }
    return {row.name: row for row in rows_of(samples)}


def test_rates_are_medians_over_repeats_with_their_spread() -> None:
    target_hf = rows()["target-hf"]
    assert target_hf.rate == (100, 50, 100)
    assert rows()["target"].rate.median == 40


def test_ratios_and_shares() -> None:
    spec = rows()["spec"]
    assert (spec.ratio_to_hf, spec.ratio_to_target) == (0.85, 85 / 40)
    assert (spec.acceptance_rate, spec.tokens_per_forward, spec.solo_share) == (0.75, 2.5, 0.2)
    assert (spec.round_us.draft, spec.round_us.verify, spec.round_us.overhead) == (15, 100, 10)
    assert spec.near_ties == 3
    assert (spec.run_ahead_hit_rate, spec.hit_draft_share) == (0.5, 20 / 135)


def test_bytes_are_of_a_round_and_the_ceiling_of_the_rows_own_rounds() -> None:
    spec, target = rows()["spec"], rows()["target"]
    assert (spec.bytes_per_round, spec.bytes_per_token) == (120, 24)
    assert target.bytes_per_round is target.ceiling_tokens_per_s is target.share_of_ceiling is None
    # A run: rounds of 5 and of 3 tokens that take 10 + 95 us each, half of the drafts hidden, and two tokens of 90 us.
    assert spec.ceiling_tokens_per_s == pytest.approx(10 / 380e-6)
    assert spec.share_of_ceiling == pytest.approx(85 / (10 / 380e-6))


def test_rows_that_ran_ahead_take_the_times_of_drafts_from_the_row_that_did_not() -> None:
    samples = {
        "spec": [sample(0, 80, 1.0, ONE_ROUND)],
        "spec+gate": [sample(0, 80, 1.0, replace(ONE_ROUND, draft_us=[30]))],
        "spec+run-ahead": [sample(0, 90, 1.0, replace(ONE_ROUND, draft_us=[47]))],
    }
    told = {row.name: row for row in rows_of(samples)}
    assert [row.model_us.draft_us[4] for row in told.values() if row.model_us] == [40, 30, 40]
    assert told["spec+run-ahead"].ceiling_tokens_per_s == pytest.approx(5 / 140e-6)
    alone = rows_of({"spec+run-ahead": samples["spec+run-ahead"]})[0]
    assert alone.ceiling_tokens_per_s == pytest.approx(5 / 147e-6)


def test_rows_that_ran_ahead_are_compared_with_their_rivals() -> None:
    ahead = replace(ONE_ROUND, prepared=[True], draft_us=[10], verify_us=[80], round_us=[100], forwards_us=[(5, 80)])
    samples = {
        scheduled("hf-assisted", "default"): [sample(repeat, 30, 1.0) for repeat in range(3)],
        scheduled("hf-assisted", "gamma5"): [sample(repeat, 20, 1.0) for repeat in range(3)],
        "spec": [sample(repeat, 40, 1.0) for repeat in range(3)],
        "spec+run-ahead": [sample(repeat, 60, 1.0, ahead) for repeat in range(3)],
    }
    told = {row.name: row for row in rows_of(samples)}
    rivals = told["spec+run-ahead"].ratios_to_rivals
    assert rivals == {"spec": (1.5, (1.5, 1.5)), "hf-assisted": (2.0, (2.0, 2.0))}
    assert told["spec"].ratios_to_rivals == told["hf-assisted"].ratios_to_rivals == {}
    stream = io.StringIO()
    print_rows(Console(file=stream, width=200), list(told.values()), None)
    assert "spec+run-ahead: 1.50 × spec (1.50..1.50), 2.00 × hf-assisted (2.00..2.00)" in stream.getvalue()
    assert "after a hit drafting takes 10.0% of the round" in stream.getvalue()
    assert json.loads(json.dumps(told["spec+run-ahead"].to_object()))["ratios_to_rivals"]["spec"]["value"] == 1.5


def test_services_that_were_lost_are_told_of() -> None:
    shown = []
    for num_lost in (2, 0):
        stream, stats = io.StringIO(), replace(ONE_ROUND, drafter_failures=num_lost)
        print_rows(Console(file=stream, width=200), rows_of({"spec": [sample(0, 80, 1.0, stats)]}), None)
        shown.append(stream.getvalue())
    assert "lost, or too slow to answer, 2 times" in shown[0]
    assert "lost" not in shown[1]


def test_the_better_schedule_is_the_row() -> None:
    samples = {
        scheduled("hf-assisted", "default"): [sample(0, 10, 1.0), sample(1, 30, 1.0), sample(2, 20, 1.0)],
        scheduled("hf-assisted", "gamma5"): [sample(repeat, 25, 1.0) for repeat in range(3)],
        "target": [sample(repeat, 10, 1.0) for repeat in range(3)],
    }
    assisted, target = rows_of(samples)
    assert (assisted.name, assisted.schedule, assisted.rate.median) == ("hf-assisted", "gamma5", 25)
    assert assisted.ratio_to_target == 2.5
    assert assisted.schedules == {"default": (20, 10, 30), "gamma5": (25, 25, 25)}
    assert (target.schedule, target.schedules) == (None, {})
    assert assisted.to_object()["schedules"]["default"]["tokens_per_s_max"] == 30


def test_rows_as_json() -> None:
    target_hf, target, spec = json.loads(json.dumps([row.to_object() for row in rows().values()]))
    assert [row["name"] for row in (target_hf, target, spec)] == ["target-hf", "target", "spec"]
    assert target_hf["round_us"] == {"draft": None, "verify": None, "overhead": None}
    assert target_hf["acceptance_rate"] is target_hf["solo_share"] is target_hf["tokens_per_forward"] is None
    assert target_hf["run_ahead_hit_rate"] is target_hf["hit_draft_share"] is None
    assert spec["run_ahead_hit_rate"] == 0.5
    assert target["ratio_to_target"] == 1.0
    assert spec["round_us"] == {"draft": 15, "verify": 100, "overhead": 10}
    assert spec["model_us"] == {"draft_us": {"4": 10}, "forward_us": {"1": 90, "5": 95}}
    assert (spec["bytes_per_round"], spec["schedule"], target["ratio_to_target_95"]) == (120, None, None)


def test_agreement_is_counted_by_prompt() -> None:
    same, other = Sample(0, 0, (1, 2), 1, 1.0), Sample(1, 0, (3,), 1, 1.0)
    samples = {"target": [same, other], "spec": [same, replace(same, repeat=1), replace(other, token_ids=(4,))]}
    assert agreement_of(samples, ("target", "spec")) == TextAgreement(("target", "spec"), equal=1, total=2)


def test_what_must_agree_depends_on_the_requests() -> None:
    names = ("target-hf", *(scheduled("hf-assisted", one) for one in ("default", "gamma5")), "target", "spec")
    samples = {name: [Sample(0, 0, (1, 2), 1, 1.0)] for name in names}
    greedy = GenerationRequest((1,), sampling=GREEDY)
    told = promised_agreement(samples, [greedy])
    assert told == TextAgreement(("target-hf", "hf-assisted", "target", "spec"), equal=1, total=1)
    odd = {**samples, scheduled("hf-assisted", "gamma5"): [Sample(0, 0, (1, 3), 1, 1.0)]}
    assert promised_agreement(odd, [greedy]) == replace(told, equal=0)
    shared = promised_agreement(odd, [GenerationRequest((1,))])
    assert shared == TextAgreement(("target", "spec"), equal=1, total=1)
    assert promised_agreement(samples, [GenerationRequest((1,), verification=Verification.REJECTION)]) is None


def test_rows_as_a_picture(tmp_path: Path) -> None:
    path = draw_rows(tmp_path, list(rows().values()))
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InvalidArgument, match=r"plots: .* cannot be written"):
        draw_rows(tmp_path / "missing", list(rows().values()))


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_table_shows_every_number_at_any_width(width: int) -> None:
    stream = io.StringIO()
    agreement = TextAgreement(("target", "spec"), 8, 8)
    longest = replace(rows()["target-hf"], name=max(ROW_NAMES, key=len), schedule="default")
    print_rows(Console(file=stream, width=width), [longest, *rows().values()], agreement)
    shown = stream.getvalue()
    for words in ("tokens/s", "× target", "verify µs", "85.0", "2.12", "75%", "█", "8 of 8 prompts", "bytes", "of it"):
        assert words in shown
    assert "…" not in shown


def test_the_request_of_all_rows() -> None:
    sampling = SamplingOptions(stop=("x",), stop_token_id=(1,))
    request = bench_request(ModelOptions(), DraftingOptions(gate=Gate.NONE), sampling)
    assert (request.gate, request.ignore_eos, request.stop, request.stop_token_ids, request.seed) == (
        Gate.TARGET_CONFIDENCE,
        True,
        (),
        frozenset(),
        0,
    )
    unsaid = bench_request(ModelOptions(), DraftingOptions(), SamplingOptions())
    assert (unsaid.gate, unsaid.max_gamma) == (Gate.TARGET_CONFIDENCE, BUNDLED_GAMMA)
    kept = bench_request(ModelOptions(), DraftingOptions(gate=Gate.DRAFT_CONFIDENCE), SamplingOptions(seed=5))
    assert (kept.gate, kept.seed) == (Gate.DRAFT_CONFIDENCE, 5)
    with pytest.raises(InvalidArgument, match="gamma: 0 leaves nothing"):
        bench_request(ModelOptions(), DraftingOptions(gamma=0), SamplingOptions())


def test_prompts_of_its_own() -> None:
    assert len(BENCH_PROMPTS) == 8
    assert len(DEMO_PROMPTS) == 3
    assert full_length(GenerationRequest((1,), seed=3)).seed == 3


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


async def test_the_bare_loop_says_what_transformers_says(llama: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loop = BareLoopProcess(str(llama), dtype="float32", device="cpu", threads=1)
    try:
        await loop.start()
        run = await loop.run(GenerationRequest((1, 2, 3), sampling=GREEDY, max_tokens=20))
        nucleus = GenerationRequest((1, 2, 3), SamplingParams(1.0, top_k=5, top_p=0.8), max_tokens=9, seed=1)
        sampled, again = await loop.run(nucleus), await loop.run(nucleus)
    finally:
        await loop.stop()
    model: Any = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    expected = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert list(run.token_ids) == expected[0, 3:].tolist()
    assert run.decode_s > 0
    assert len(sampled.token_ids) == 9
    assert sampled.token_ids == again.token_ids


async def test_a_bare_loop_that_cannot_load_says_why(tmp_path: Path) -> None:
    loop = BareLoopProcess(str(tmp_path), dtype="float32", device="cpu", threads=1)
    with pytest.raises(ServiceUnavailable, match="bare loop ended with exit code 1"):
        await loop.start()
    await loop.stop()


def test_the_baseline_is_free_of_our_runtime() -> None:
    baseline = "orchestrator.bench.peers.hf_baseline"
    code = f"import sys, {baseline}; print([m for m in sys.modules if m.split('.')[0] == 'specgate'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_rows_have_the_names_of_the_origin_experiment() -> None:
    origin = ("draft", "target-hf", "target-hf-all-cores", "target", "spec", "spec+gate")
    assert [name for name in ROW_NAMES if name in origin] == list(origin)
    assert {*PAIR_ROWS, *SCHEDULED_ROWS} <= set(ROW_NAMES)
    assert len(set(ROW_NAMES)) == len(ROW_NAMES)
