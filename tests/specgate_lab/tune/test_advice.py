"""What follows from samples: what is advised, and when nothing is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.api.settings.settings import load_settings
from orchestrator.local.pair_settings import GivenSettings
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument
from specgate.types import DraftMethod, Verification
from specgate_lab.bench.row_names import TARGET
from specgate_lab.experiment import Sample
from specgate_lab.gate_choice import AUTO_GATE, GateChoice
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.statistics import Interval
from specgate_lab.timeline import RequestTimeline
from specgate_lab.tune.advice import Advice, FinalRound, advise, finalists
from specgate_lab.tune.candidates import Choice, DrafterChoice, choices_of, default_choice, drafters_of
from specgate_lab.tune.compare import Tried, name_in_other_mode, other_mode
from specgate_lab.tune.report import write_config
from specgate_lab.tune.versus_target import Gain

MODEL, AHEAD = DrafterChoice(DraftMethod.MODEL), DrafterChoice(DraftMethod.MODEL, 4)
SUFFIX = DrafterChoice(DraftMethod.SUFFIX)
GAMMA_5 = GateChoice(Gate.NONE, 5)
AUTO, FIXED, ON_DEMAND = Choice(AHEAD, AUTO_GATE), Choice(AHEAD, GAMMA_5), Choice(MODEL, GAMMA_5)
COPIES = Choice(SUFFIX, AUTO_GATE)
SHARED = Verification.SHARED_NOISE


def samples(rates: Mapping[Choice | str, float], *, drafted: bool = True) -> dict[str, list[Sample]]:
    """Return samples of variants with these tokens per second, each a little slower on every second prompt."""
    timed = (RequestTimeline(0.0, (), MeasuredStats(drafted=10 * drafted, accepted=5 * drafted)),)
    return {
        str(name): [
            Sample(100, 100 / rate * (1 + 0.02 * (prompt % 2)), (1,), timed, case=prompt, repeat=repeat)
            for prompt in range(4)
            for repeat in range(3)
        ]
        for name, rate in {TARGET: 100.0, **rates}.items()
    }


def tried(ratios: Mapping[Choice, float]) -> list[Tried]:
    return [
        Tried(choice, Gain(str(choice), 100 * ratio, ratio, Interval(ratio, ratio))) for choice, ratio in ratios.items()
    ]


def advice(
    rates: Mapping[Choice | str, float],
    *,
    measured: Mapping[str, Sequence[Sample]] | None = None,
    allow_mode: bool = False,
    drafters: Sequence[DrafterChoice] = (AHEAD, SUFFIX),
    mode: Verification = SHARED,
    differ: frozenset[str] = frozenset(),
) -> Advice:
    """Return the advice on variants with these tokens per second; the target alone has 100."""
    choices = [one for one in rates if isinstance(one, Choice)]
    final = FinalRound(choices, measured or samples(rates), mode, AUTO, differ)
    return advise(tried(dict.fromkeys(choices, 1.0)), final, drafters, allow_mode=allow_mode)


def test_the_fastest_for_sure_is_advised_with_the_gain_of_each_part() -> None:
    found = advice({FIXED: 200, AUTO: 160, ON_DEMAND: 150, COPIES: 120})
    assert found.choice == FIXED
    words = "\n".join(found.words())
    assert "Draft with model with run-ahead, none γ 5: 2.00 × the target alone" in words
    assert "Run-ahead, over model without: 1.33 ×" in words
    assert "The gate, over auto: 1.25 ×" in words
    assert "All of it, over what is served by default: 1.25 ×" in words
    assert "The source, over the next one (suffix, auto): 1.67 ×" in words


@pytest.mark.parametrize(
    ("rates", "choice"),
    [
        # A fixed gate must be faster than auto for sure, and auto must pay.
        ({FIXED: 152, AUTO: 150}, AUTO),
        ({FIXED: 105, AUTO: 102.5}, FIXED),
        ({AUTO: 102, COPIES: 101}, None),
        ({AUTO: 60, COPIES: 59}, None),
    ],
)
def test_what_is_advised(rates: dict[Choice | str, float], choice: Choice | None) -> None:
    found = advice(rates)
    assert found.choice == choice
    assert found.words()[0].startswith("Serve the target alone." if choice is None else f"Draft with {choice}:")


def test_a_gain_that_is_not_sure_or_of_few_answers_or_without_drafts_is_none() -> None:
    rates: dict[Choice | str, float] = {AUTO: 160, COPIES: 125}
    every = samples(rates)
    unsure = [replace(one, seconds=one.seconds * (3 if one.case == 0 else 1)) for one in every[str(AUTO)]]
    assert advice(rates, measured={**every, str(AUTO): unsure}).choice == COPIES
    assert advice(rates, measured={name: own[:3] for name, own in every.items()}).choice is None
    assert advice(rates, measured=samples(rates, drafted=False)).choice is None


def test_a_choice_with_other_texts_is_a_fault_and_not_advised() -> None:
    found = advice({AUTO: 150, COPIES: 120}, differ=frozenset({str(AUTO)}))
    assert found.choice == COPIES
    assert f"Texts were not the target's with: {AUTO}." in "\n".join(found.words())


def test_where_no_model_was_given_there_are_ways_to_get_one() -> None:
    words = ["\n".join(advice({COPIES: 100}, drafters=drafters).words()) for drafters in ((SUFFIX,), (AHEAD, SUFFIX))]
    assert ["orchestrator train-draft" in one for one in words] == [True, False]


@pytest.mark.parametrize("allow_mode", [False, True])
@pytest.mark.parametrize("mode", list(Verification))
def test_the_mode_is_compared_and_changed_only_when_that_is_allowed(allow_mode: bool, mode: Verification) -> None:
    found = advice({AUTO: 150, name_in_other_mode(AUTO): 180}, allow_mode=allow_mode, mode=mode)
    words = "\n".join(found.words())
    assert f"Verification {other_mode(mode)} instead of {mode}: 1.20 ×" in words
    assert found.verification is (other_mode(mode) if allow_mode else mode)
    assert ("The configuration says verification" in words) == allow_mode


def test_the_final_round_shows_the_worth_of_each_part() -> None:
    ratios = {FIXED: 2.0, AUTO: 1.5, ON_DEMAND: 1.4, Choice(MODEL, AUTO_GATE): 1.3, COPIES: 1.2}
    assert set(finalists(tried(ratios), AUTO)) == {FIXED, AUTO, ON_DEMAND, COPIES}
    assert finalists(tried(ratios), AUTO)[0] == FIXED
    # Where the best one does not run ahead, one that does is beside it.
    assert FIXED in finalists(tried({**ratios, ON_DEMAND: 2.5}), None)


def test_drafters_are_those_that_can_be_started() -> None:
    bundled, alone = ModelOptions(), ModelOptions(target="some/target")
    flags = GivenSettings({"run_ahead": 4})
    named = drafters_of(ModelOptions(target="some/target", draft="some/draft", service=flags), None, ())
    assert [one.method for one in drafters_of(alone, None, ())] == [DraftMethod.SUFFIX]
    assert {one.method for one in drafters_of(bundled, None, ())} == set(DraftMethod) - {DraftMethod.LAYER_SKIP}
    assert {AHEAD, MODEL, SUFFIX} <= set(named)
    assert DraftMethod.LAYER_SKIP in {one.method for one in drafters_of(alone, "skip.json", ())}
    with pytest.raises(InvalidArgument, match="draft: is needed for the source model"):
        drafters_of(alone, None, (DraftMethod.MODEL,))
    assert default_choice(alone) is None
    assert all(choices_of(one)[0].gate == AUTO_GATE for one in named)


@pytest.mark.parametrize("best", [FIXED, COPIES, None])
@pytest.mark.parametrize("mode", list(Verification))
def test_serve_takes_the_configuration(best: Choice | None, mode: Verification, tmp_path: Path) -> None:
    found = advice({best or AUTO: 200 if best else 50}, mode=mode)
    models = ModelOptions(target="some/target", draft="some/draft", service=GivenSettings({"threads": 2}))
    write_config(tmp_path / "serve.yaml", found, models, None)
    settings = load_settings(tmp_path / "serve.yaml")
    assert (settings.verifier.model, settings.verifier.threads) == ("some/target", 2)
    assert settings.defaults.verification is mode
    if best is None:
        assert (settings.drafter, settings.defaults.gamma) == (None, 0)
        return
    assert settings.drafter is not None
    assert settings.drafter.method is best.drafter.method
    assert settings.drafter.model == ("some/draft" if best is FIXED else "")
    assert settings.drafter.run_ahead == best.drafter.run_ahead
    assert (settings.defaults.gate, settings.defaults.gamma) == best.gate[:2]
    with pytest.raises(InvalidArgument, match=f"out: {tmp_path}/nowhere/serve.yaml cannot be written"):
        write_config(tmp_path / "nowhere" / "serve.yaml", found, models, None)
