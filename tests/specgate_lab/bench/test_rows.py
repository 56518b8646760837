"""The benchmark's rows: right sums, agreement where texts are promised to be equal, and every number shown."""

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.request_options import BUNDLED_GAMMA, DraftingOptions, SamplingOptions
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams, Verification
from specgate_lab.bench.row_names import ROW_NAMES, scheduled
from specgate_lab.bench.rows import Row, RowsReport, TextAgreement, promised_agreement, rows_of
from specgate_lab.bench.table import draw_rows, print_rows
from specgate_lab.experiment import Sample, Samples
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.workload import bench_request
from tests.specgate_lab.support import a_timeline

DEFAULT, GAMMA5 = scheduled("hf-assisted", "default"), scheduled("hf-assisted", "gamma5")
ONE_ROUND = MeasuredStats(
    rounds=1,
    draft_lengths=[4],
    prepared=[False],
    draft_us=[40],
    verify_us=[100],
    round_us=[150],
    forwards_us=[(5, 100)],
    outcomes=Counter({(4, 4): 1}),
)
TWO_ROUNDS = MeasuredStats(
    rounds=2,
    draft_lengths=[4, 4],
    prepared=[False, True],
    draft_us=[10, 20],
    verify_us=[100, 100],
    round_us=[115, 135],
    forwards_us=[(1, 90), (5, 95), (5, 95), (1, 90)],
    outcomes=Counter({(4, 4): 1, (4, 2): 1}),
    completion_tokens=10,
    drafted=8,
    accepted=6,
    solo_tokens=2,
    target_forwards=4,
    near_ties=1,
)


def measured(*rates: int, stats: MeasuredStats | None = None) -> list[Sample]:
    """Return a sample a repeat, of one second each."""
    requests = (a_timeline(0.0, stats=stats),) if stats else ()
    return [Sample(rate, 1.0, (1,), requests, 240 if stats else None, 0, at) for at, rate in enumerate(rates)]


def rows_by_name(samples: Samples) -> dict[str, Row]:
    return {row.name: row for row in rows_of(samples)}


@pytest.fixture
def rows() -> dict[str, Row]:
    spec = measured(80, 90, 85, stats=TWO_ROUNDS)
    return rows_by_name({"spec": spec, "target-hf": measured(100, 50, 100), "target": measured(40, 40)})


def test_a_row_tells_what_its_rounds_did_and_its_ratios(rows: dict[str, Row]) -> None:
    assert list(rows) == ["target-hf", "target", "spec"]
    spec, target = rows["spec"], rows["target"]
    assert (spec.ratio_to_hf, spec.ratio_to_target) == (0.85, 85 / 40)
    assert (spec.acceptance_rate, spec.tokens_per_forward, spec.solo_share, spec.near_ties) == (0.75, 2.5, 0.2, 3)
    assert (spec.run_ahead_hit_rate, spec.hit_draft_share) == (0.5, 20 / 135)
    assert (spec.bytes_per_round, spec.bytes_per_token) == (120, 24)
    # A run: rounds of 5 and of 3 tokens that take 10 + 95 us each, half of the drafts hidden, and two tokens of 90 us.
    assert spec.ceiling_tokens_per_s == pytest.approx(10 / 380e-6)
    assert spec.share_of_ceiling == pytest.approx(85 / (10 / 380e-6))
    assert target.acceptance_rate is target.bytes_per_round is target.ceiling_tokens_per_s is None
    told = json.loads(json.dumps(spec.to_object()))
    assert (told["tokens_per_s"], told["tokens_per_s_min"], told["tokens_per_s_max"]) == (85, 80, 90)
    assert told["round_us"] == {"draft": 15, "verify": 100, "overhead": 10}
    assert told["model_us"] == {"draft_us": {"4": 10}, "forward_us": {"1": 90, "5": 95}}


def test_rows_that_ran_ahead_take_the_times_of_drafts_from_the_row_that_did_not() -> None:
    ahead = {"spec+run-ahead": measured(90, stats=replace(ONE_ROUND, draft_us=[47]))}
    told = rows_by_name({"spec": measured(80, stats=ONE_ROUND), **ahead})
    assert told["spec+run-ahead"].ceiling_tokens_per_s == pytest.approx(5 / 140e-6)
    assert rows_of(ahead)[0].ceiling_tokens_per_s == pytest.approx(5 / 147e-6)


def test_the_better_schedule_is_the_row_and_a_rival_of_those_that_ran_ahead() -> None:
    told = rows_by_name(
        {
            DEFAULT: measured(10, 30, 20, 20),
            GAMMA5: measured(25, 25, 25, 25),
            "target": measured(10, 10, 10, 10),
            "spec": measured(40, 40, 40, 40),
            "spec+run-ahead": measured(50, 50, 50, 50, stats=ONE_ROUND),
        }
    )
    assisted, ahead = told["hf-assisted"], told["spec+run-ahead"]
    assert (assisted.schedule, assisted.rate.median, assisted.ratio_to_target) == ("gamma5", 25, 2.5)
    assert assisted.schedules == {"default": (20, 10, 30), "gamma5": (25, 25, 25)}
    assert ahead.ratios_to_rivals == {"spec": (1.25, (1.25, 1.25)), "hf-assisted": (2.0, (2.0, 2.0))}
    assert told["spec"].ratios_to_rivals == assisted.ratios_to_rivals == {}


SAME, OTHER = Sample(1, 1.0, (1, 2)), Sample(1, 1.0, (3,), case=1)
TEXTS = {name: [SAME, OTHER] for name in ("target-hf", DEFAULT, GAMMA5, "target", "spec")}
ODD = {**TEXTS, GAMMA5: [replace(SAME, token_ids=(1, 3)), OTHER]}
LATER = {"target": [SAME], "spec": [SAME, replace(SAME, repeat=1, token_ids=(4,))]}
ALL, OURS = ("target-hf", "hf-assisted", "target", "spec"), ("target", "spec")
GREEDY = GenerationRequest((1,), sampling=SamplingParams(temperature=0.0))
REJECTION = GenerationRequest((1,), verification=Verification.REJECTION)


@pytest.mark.parametrize(
    ("samples", "request_", "agreement"),
    [
        pytest.param(TEXTS, GREEDY, TextAgreement(ALL, 2, 2), id="greedy, HuggingFace agrees too"),
        pytest.param(ODD, GREEDY, TextAgreement(ALL, 1, 2), id="one schedule differs"),
        pytest.param(ODD, GenerationRequest((1,)), TextAgreement(OURS, 2, 2), id="HuggingFace draws in its own way"),
        pytest.param(LATER, GREEDY, TextAgreement(OURS, 0, 1), id="a repeat differs"),
        pytest.param(TEXTS, REJECTION, None, id="rejection promises a law"),
    ],
)
def test_what_must_agree_depends_on_the_requests(
    samples: Samples, request_: GenerationRequest, agreement: TextAgreement | None
) -> None:
    assert promised_agreement(samples, [request_]) == agreement


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_shows_every_number_at_any_width_and_what_was_lost(width: int, rows: dict[str, Row]) -> None:
    stream = io.StringIO()
    longest = replace(rows["target-hf"], name=max(ROW_NAMES, key=len), schedule="default", failures_survived=2)
    report = RowsReport([longest, *rows.values()], TextAgreement(("target", "spec"), 8, 8))
    print_rows(Console(file=stream, width=width), report)
    shown = stream.getvalue()
    assert all(words in shown for words in ("85.0", "2.12", "75%", "█", "8 of 8 prompts", "lost"))
    assert "…" not in shown


def test_rows_as_a_picture(tmp_path: Path, rows: dict[str, Row]) -> None:
    assert draw_rows(tmp_path, list(rows.values())).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InvalidArgument, match=r"plots: .* cannot be written"):
        draw_rows(tmp_path / "missing", list(rows.values()))


def test_the_request_of_all_rows_runs_to_its_end_and_has_something_to_compare() -> None:
    endings = SamplingOptions(stop=("x",), stop_token_id=(1,))
    request = bench_request(ModelOptions(), DraftingOptions(gate=Gate.NONE), endings)
    assert (request.gate, request.max_gamma, request.seed) == (Gate.TARGET_CONFIDENCE, BUNDLED_GAMMA, 0)
    assert (request.ignore_eos, request.stop, request.stop_token_ids) == (True, (), frozenset())
    kept = bench_request(ModelOptions(), DraftingOptions(gate=Gate.DRAFT_CONFIDENCE), SamplingOptions(seed=5))
    assert (kept.gate, kept.seed) == (Gate.DRAFT_CONFIDENCE, 5)
    with pytest.raises(InvalidArgument, match="gamma: 0 leaves nothing"):
        bench_request(ModelOptions(), DraftingOptions(gamma=0), SamplingOptions())
