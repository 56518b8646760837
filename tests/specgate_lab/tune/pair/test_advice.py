"""What follows from samples: what is advised, and when nothing is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.api.settings.settings import load_settings
from orchestrator.decode.request import GenerationStats
from orchestrator.local.pair_settings import GivenSettings
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument
from specgate.types import DraftMethod, Verification
from specgate_lab.bench.row_names import TARGET
from specgate_lab.experiment import Sample
from specgate_lab.statistics import Interval
from specgate_lab.timeline import RequestTimeline
from specgate_lab.tune.pair.advice import Advice, FinalRound, advise, finalists
from specgate_lab.tune.pair.candidates import Choice, DrafterChoice, choices_of, default_choice, drafters_of
from specgate_lab.tune.pair.compare import Tried, name_in_other_mode, other_mode
from specgate_lab.tune.pair.serve_config import write_config
from specgate_lab.tune.versus_target import Gain

MODEL, AHEAD = DrafterChoice(DraftMethod.MODEL), DrafterChoice(DraftMethod.MODEL, 4)
SUFFIX = DrafterChoice(DraftMethod.SUFFIX)
AUTO, FIXED = Choice(AHEAD, Gate.AUTO), Choice(AHEAD, Gate.NONE, 5)
COPIES = Choice(SUFFIX, Gate.AUTO)


def samples(rates: Mapping[str, float], *, drafted: bool = True) -> dict[str, list[Sample]]:
    """Return samples of ways with these tokens a second, each a little slower on every second prompt."""
    timed = (RequestTimeline(0.0, (), GenerationStats(drafted=10 * drafted, accepted=5 * drafted)),)
    return {
        name: [
            Sample(100, 100 / rate * (1 + 0.02 * (prompt % 2)), (1,), timed, case=prompt, repeat=repeat)
            for prompt in range(4)
            for repeat in range(3)
        ]
        for name, rate in rates.items()
    }


def tried(ratios: Mapping[Choice, float]) -> list[Tried]:
    return [
        Tried(choice, Gain(str(choice), 100 * ratio, ratio, Interval(ratio, ratio))) for choice, ratio in ratios.items()
    ]


def advice(
    rates: Mapping[Choice | str, float],
    *,
    allow_mode: bool = False,
    drafters: Sequence[DrafterChoice] = (AHEAD, SUFFIX),
    mode: Verification = Verification.SHARED_NOISE,
    differ: frozenset[str] = frozenset(),
    drafted: bool = True,
) -> Advice:
    """Return the advice on ways with these tokens a second; the target alone has 100."""
    choices = [one for one in rates if isinstance(one, Choice)]
    measured = samples({TARGET: 100.0, **{str(one): rate for one, rate in rates.items()}}, drafted=drafted)
    final = FinalRound(choices, measured, mode, AUTO, differ)
    return advise(tried(dict.fromkeys(choices, 1.0)), final, drafters, allow_mode=allow_mode)


def test_the_fastest_for_sure_is_advised_with_what_each_part_brings() -> None:
    without = FIXED._replace(drafter=MODEL)
    told = advice({FIXED: 200, AUTO: 160, without: 150, COPIES: 120})
    assert told.choice == FIXED
    words = "\n".join(told.words())
    assert "Draft with model with run-ahead, none γ 5: 2.00 × the target alone" in words
    assert "Run-ahead, over model without: 1.33 ×" in words
    assert "The gate, over auto: 1.25 ×" in words
    assert "All of it, over what is served by default: 1.25 ×" in words
    assert "The source, over the next one (suffix, auto): 1.67 ×" in words


def test_auto_is_advised_where_a_fixed_gate_is_hardly_faster() -> None:
    assert advice({FIXED: 152, AUTO: 150}).choice == AUTO


def test_a_fixed_gate_is_advised_where_auto_does_not_pay() -> None:
    assert advice({FIXED: 105, AUTO: 102.5}).choice == FIXED


def test_the_fastest_is_no_rival_where_it_is_not_sure() -> None:
    slow_once = samples({TARGET: 100.0, str(AUTO): 160, str(COPIES): 125})
    unsure = [replace(one, seconds=one.seconds * (3 if one.case == 0 else 1)) for one in slow_once[str(AUTO)]]
    final = FinalRound([AUTO, COPIES], {**slow_once, str(AUTO): unsure}, Verification.SHARED_NOISE)
    assert final.gain(AUTO).interval is not None
    assert not final.gain(AUTO).pays
    assert advise(tried({AUTO: 1.6, COPIES: 1.2}), final, (AHEAD, SUFFIX), allow_mode=False).choice == COPIES


@pytest.mark.parametrize("rate", [60, 99, 102])
def test_the_target_alone_is_advised_where_no_draft_pays(rate: float) -> None:
    told = advice({AUTO: rate, COPIES: rate - 1})
    assert told.choice is None
    assert told.words()[0].startswith("Serve the target alone.")
    assert "train-draft" not in "\n".join(told.words())


def test_a_way_that_drafted_nothing_does_not_pay() -> None:
    assert advice({COPIES: 120}, drafted=False).choice is None


def test_few_answers_tell_nothing() -> None:
    few = {name: own[:3] for name, own in samples({TARGET: 100, str(AUTO): 200}).items()}
    final = FinalRound([AUTO], few, Verification.SHARED_NOISE)
    assert final.gain(AUTO).interval is None
    assert advise(tried({AUTO: 2.0}), final, (AHEAD,), allow_mode=False).choice is None


def test_a_way_with_other_texts_is_a_fault_and_not_advised() -> None:
    told = advice({AUTO: 150, COPIES: 120}, differ=frozenset({str(AUTO)}))
    assert told.choice == COPIES
    assert f"Texts were not the target's with: {AUTO}." in "\n".join(told.words())


def test_where_no_model_was_given_there_are_ways_to_get_one() -> None:
    words = "\n".join(advice({COPIES: 100}, drafters=(SUFFIX,)).words())
    assert "orchestrator train-draft" in words
    assert "orchestrator tune layers" in words


@pytest.mark.parametrize("allow_mode", [False, True])
@pytest.mark.parametrize("mode", list(Verification))
def test_the_mode_is_compared_and_changed_only_when_that_is_allowed(allow_mode: bool, mode: Verification) -> None:
    told = advice({AUTO: 150, name_in_other_mode(AUTO): 180}, allow_mode=allow_mode, mode=mode)
    words = "\n".join(told.words())
    assert f"Verification {other_mode(mode)} instead of {mode}: 1.20 ×" in words
    assert told.verification is (other_mode(mode) if allow_mode else mode)
    assert ("The configuration says verification" in words) == allow_mode


def test_the_ratio_is_of_the_medians() -> None:
    rows = samples({TARGET: 100, str(AUTO): 200})
    rows[str(AUTO)] = [replace(one, seconds=one.seconds * (1 + one.repeat)) for one in rows[str(AUTO)]]
    gain = FinalRound([AUTO], rows, Verification.SHARED_NOISE).gain(AUTO)
    assert gain.ratio == pytest.approx(1.0)


def test_the_final_round_has_what_tells_the_worth_of_each_part() -> None:
    without = FIXED._replace(drafter=MODEL)
    ratios = {FIXED: 2.0, AUTO: 1.5, without: 1.4, Choice(MODEL, Gate.AUTO): 1.3, COPIES: 1.2}
    assert set(finalists(tried(ratios), AUTO)) == {FIXED, AUTO, without, COPIES}
    assert finalists(tried(ratios), AUTO)[0] == FIXED
    # Where the best one does not run ahead, one that does is beside it.
    assert FIXED in finalists(tried({**ratios, without: 2.5}), None)


def test_drafters_are_those_that_can_be_started() -> None:
    bundled, alone = ModelOptions(), ModelOptions(target="some/target")
    flags = GivenSettings({"run_ahead": 4})
    named = ModelOptions(target="some/target", draft="some/draft", service=flags)
    assert [one.method for one in drafters_of(alone, None, ())] == [DraftMethod.SUFFIX]
    assert {one.method for one in drafters_of(bundled, None, ())} == set(DraftMethod) - {DraftMethod.LAYER_SKIP}
    assert DrafterChoice(DraftMethod.MODEL, 4) in drafters_of(named, None, ())
    assert DrafterChoice(DraftMethod.MODEL, 0) in drafters_of(named, None, ())
    assert DrafterChoice(DraftMethod.SUFFIX, 0) in drafters_of(named, None, ())
    assert DraftMethod.LAYER_SKIP in {one.method for one in drafters_of(alone, "skip.json", ())}
    with pytest.raises(InvalidArgument, match="draft: is needed for the source model"):
        drafters_of(alone, None, (DraftMethod.MODEL,))
    assert default_choice(alone) is None
    assert all(choices_of(one)[0].gate is Gate.AUTO for one in drafters_of(named, None, ()))


@pytest.mark.parametrize("best", [FIXED, COPIES, None])
@pytest.mark.parametrize("mode", list(Verification))
def test_serve_takes_the_configuration(best: Choice | None, mode: Verification, tmp_path: Path) -> None:
    told = advice({best or AUTO: 200 if best else 50}, mode=mode)
    models = ModelOptions(target="some/target", draft="some/draft", service=GivenSettings({"threads": 2}))
    write_config(tmp_path / "serve.yaml", told, models, None)
    settings = load_settings(tmp_path / "serve.yaml")
    assert settings.verifier.model == "some/target"
    assert settings.verifier.threads == 2
    assert settings.defaults.verification is mode
    if best is None:
        assert settings.drafter is None
        assert settings.defaults.gamma == 0
        return
    assert settings.drafter is not None
    assert settings.drafter.method is best.drafter.method
    assert settings.drafter.model == ("some/draft" if best is FIXED else "")
    assert settings.drafter.run_ahead == best.drafter.run_ahead
    assert (settings.defaults.gate, settings.defaults.gamma) == (best.gate, best.gamma)


def test_a_configuration_is_whole_or_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "serve.yaml"
    with pytest.raises(InvalidArgument, match=f"out: {path} cannot be written"):
        write_config(path, advice({FIXED: 200}), ModelOptions(), None)
