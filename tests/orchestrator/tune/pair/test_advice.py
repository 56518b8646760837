"""What follows from samples: what is advised, and when nothing is."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.api.settings.settings import load_settings
from orchestrator.bench.throughput.interval import Interval
from orchestrator.bench.throughput.samples import TARGET, Sample
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.service_flags import ServiceFlags
from orchestrator.tune.pair.advice import advise, finalists
from orchestrator.tune.pair.candidates import Choice, DrafterChoice, choices_of, default_choice, drafters_of
from orchestrator.tune.pair.compare import OTHER_MODE, Tried
from orchestrator.tune.pair.serve_config import write_config
from orchestrator.tune.versus_target import Brought
from specgate.errors import InvalidArgument
from specgate.types import DraftMethod, Verification

MODEL, AHEAD = DrafterChoice(DraftMethod.MODEL), DrafterChoice(DraftMethod.MODEL, 4)
SUFFIX = DrafterChoice(DraftMethod.SUFFIX)
AUTO, FIXED = Choice(AHEAD, Gate.AUTO), Choice(AHEAD, Gate.NONE, 5)
COPIES = Choice(SUFFIX, Gate.AUTO)


def samples(rates: Mapping[str, float]) -> dict[str, list[Sample]]:
    """Return samples of ways with these tokens a second, each a little slower on every second prompt."""
    return {
        name: [
            Sample(prompt, repeat, (1,), 100, 100 / rate * (1 + 0.02 * (prompt % 2)))
            for prompt in range(4)
            for repeat in range(3)
        ]
        for name, rate in rates.items()
    }


def tried(ratios: Mapping[Choice, float]) -> list[Tried]:
    return [
        Tried(choice, Brought(str(choice), 100 * ratio, ratio, Interval(ratio, ratio)))
        for choice, ratio in ratios.items()
    ]


def test_the_fastest_for_sure_is_advised_with_what_each_part_brings() -> None:
    without = FIXED._replace(drafter=MODEL)
    finals = [FIXED, AUTO, without, COPIES]
    rates = {TARGET: 100, str(FIXED): 200, str(AUTO): 160, str(without): 150, str(COPIES): 120}
    told = advise(
        tried(dict.fromkeys(finals, 1.0)), finals, samples(rates), AUTO, Verification.SHARED_NOISE, allow_mode=False
    )
    assert told.choice == FIXED
    words = "\n".join(told.words())
    assert "Draft with model with run-ahead, none γ 5: 2.00 × the target alone" in words
    assert "Run-ahead, over model without: 1.33 ×" in words
    assert "The gate, over auto: 1.25 ×" in words
    assert "All of it, over what is served by default: 1.25 ×" in words
    assert "The source, over the next one (suffix, auto): 1.67 ×" in words


def test_auto_is_advised_where_a_fixed_gate_is_hardly_faster() -> None:
    rates = {TARGET: 100, str(FIXED): 152, str(AUTO): 150}
    told = advise(
        tried({FIXED: 1.5, AUTO: 1.5}), [FIXED, AUTO], samples(rates), AUTO, Verification.SHARED_NOISE, allow_mode=False
    )
    assert told.choice == AUTO


@pytest.mark.parametrize("rate", [60, 99, 102])
def test_the_target_alone_is_advised_where_no_draft_pays(rate: float) -> None:
    rates = {TARGET: 100, str(AUTO): rate, str(COPIES): rate - 1}
    told = advise(
        tried({AUTO: 1.0, COPIES: 1.0}), [AUTO, COPIES], samples(rates), AUTO, Verification.SHARED_NOISE,
        allow_mode=False,
    )  # fmt: skip
    assert told.choice is None
    assert told.words()[0].startswith("Serve the target alone.")
    assert "train-draft" not in "\n".join(told.words())


def test_where_no_model_was_given_there_are_ways_to_get_one() -> None:
    told = advise(
        tried({COPIES: 1.0}), [COPIES], samples({TARGET: 100, str(COPIES): 100}), None, Verification.SHARED_NOISE,
        allow_mode=False,
    )  # fmt: skip
    assert "orchestrator train-draft" in "\n".join(told.words())
    assert "orchestrator tune layers" in "\n".join(told.words())


@pytest.mark.parametrize("allow_mode", [False, True])
def test_the_mode_is_compared_and_changed_only_when_that_is_allowed(allow_mode: bool) -> None:
    rates = {TARGET: 100, str(AUTO): 150, OTHER_MODE: 180}
    told = advise(tried({AUTO: 1.5}), [AUTO], samples(rates), AUTO, Verification.SHARED_NOISE, allow_mode=allow_mode)
    assert "Verification rejection instead of shared_noise" in "\n".join(told.words())
    assert told.verification is (Verification.REJECTION if allow_mode else None)


def test_the_final_round_has_what_tells_the_worth_of_each_part() -> None:
    without = FIXED._replace(drafter=MODEL)
    ratios = {FIXED: 2.0, AUTO: 1.5, without: 1.4, Choice(MODEL, Gate.AUTO): 1.3, COPIES: 1.2}
    assert set(finalists(tried(ratios), AUTO)) == {FIXED, AUTO, without, COPIES}
    assert finalists(tried(ratios), AUTO)[0] == FIXED
    # Where the best one does not run ahead, one that does is beside it.
    assert FIXED in finalists(tried({**ratios, without: 2.5}), None)


def test_drafters_are_those_that_can_be_started() -> None:
    bundled, alone = ModelOptions(), ModelOptions(target="some/target")
    flags = ServiceFlags({"run_ahead": 4})
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
def test_serve_takes_the_configuration(best: Choice | None, tmp_path: Path) -> None:
    finals = [best or AUTO]
    rates = {TARGET: 100.0, str(finals[0]): 200.0 if best else 50.0}
    told = advise(tried({finals[0]: 1.0}), finals, samples(rates), None, Verification.SHARED_NOISE, allow_mode=False)
    models = ModelOptions(target="some/target", draft="some/draft", service=ServiceFlags({"threads": 2}))
    write_config(tmp_path / "serve.yaml", told, models, None)
    settings = load_settings(tmp_path / "serve.yaml")
    assert settings.verifier.model == "some/target"
    assert settings.verifier.threads == 2
    if best is None:
        assert settings.drafter is None
        assert settings.defaults.gamma == 0
        return
    assert settings.drafter is not None
    assert settings.drafter.method is best.drafter.method
    assert settings.drafter.model == ("some/draft" if best is FIXED else "")
    assert settings.drafter.run_ahead == best.drafter.run_ahead
    assert (settings.defaults.gate, settings.defaults.gamma) == (best.gate, best.gamma)
