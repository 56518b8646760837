"""Flags become frozen values; prompts files become requests; what is wrong is named."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET, Defaults
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.launch import PAGE_TOKENS, Capacity, capacity_for
from orchestrator.local.pair_settings import GivenSettings
from orchestrator.policy.gates import AUTO_GAMMA, FIXED_GAMMA, Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, read_prompts, with_token_ids
from orchestrator.terminal.request_options import BUNDLED_GAMMA, DraftingOptions, SamplingOptions, request_for
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams, Verification

DEFAULTS = GenerationRequest(prompt_token_ids=(), sampling=SamplingParams(temperature=0.0))


def parsed(*flags: str) -> tuple[ModelOptions, GenerationRequest, int]:
    """Return what a command that takes all groups makes of them."""
    received: list[Any] = []
    app = typer.Typer()

    @app.command()
    @takes_groups
    def command(models: ModelOptions, drafting: DraftingOptions, sampling: SamplingOptions, extra: int = 7) -> None:
        received.append((models, request_for(models, drafting, sampling), extra))

    CliRunner().invoke(app, flags, catch_exceptions=False, standalone_mode=False)
    return received[0]


def test_all_flags_reach_the_request() -> None:
    models, request, extra = parsed(
        *("--verifier", "a:1", "--verifier", "b:2", "--pin", "--gate", "target_confidence", "--gamma", "6"),
        *(
            "--draft-threshold",
            "0.2",
            "--gate-threshold",
            "0.3",
            "--verification",
            "rejection",
            "--temperature",
            "0.7",
            "--top-k",
            "5",
        ),
        *("--top-p", "0.9", "--min-p", "0.1", "--repetition-penalty", "1.1", "--presence-penalty", "0.2"),
        *("--frequency-penalty", "0.3", "--seed", "42", "--max-tokens", "33", "--stop", "x"),
        *("--stop-token-id", "1", "--stop-token-id", "2", "--ignore-eos", "--extra", "1"),
    )
    assert (models.verifier, models.pin, extra) == (("a:1", "b:2"), True, 1)
    assert request == GenerationRequest(
        (), SamplingParams(0.7, 5, 0.9, 0.1, 1.1, 0.2, 0.3), 33, 42, ("x",), frozenset({1, 2}), True, 6,
        Gate.TARGET_CONFIDENCE, 0.3, 0.2, Verification.REJECTION,
    )  # fmt: skip


def test_who_says_nothing_gets_the_bundled_pair_and_the_same_gate_everywhere() -> None:
    models, request, extra = parsed()
    assert (models, request, extra) == (ModelOptions(), DEFAULTS, 7)
    assert (models.target_model, models.draft_model) == (BUNDLED_TARGET, BUNDLED_DRAFT)
    assert Defaults().gate is request.gate is Gate.AUTO


def test_which_models_are_used() -> None:
    named = ModelOptions(verifier=("h:1",), drafter=("h:2",))
    assert (named.target_model, named.draft_model) == (None, None)
    half_named = ModelOptions(verifier=("h:1",))
    assert (half_named.target_model, half_named.draft_model) == (None, BUNDLED_DRAFT)
    ModelOptions(target="t", draft="d").check_draft()
    ModelOptions(target="t", drafter=("h:1",)).check_draft()
    suffix = ModelOptions(target="t", service=GivenSettings({"method": "suffix"}))
    skipping = ModelOptions(target="t", service=GivenSettings({"method": "layer-skip", "skip": "f"}))
    assert (suffix.draft_model, skipping.draft_model) == (None, "t")
    assert suffix.starts_drafter
    assert skipping.starts_drafter
    suffix.check_draft()


def test_a_method_goes_with_what_it_needs_and_nothing_else() -> None:
    with pytest.raises(InvalidArgument, match="draft: 'd' is not for the method suffix"):
        ModelOptions(draft="d", service=GivenSettings({"method": "suffix"}))
    with pytest.raises(InvalidArgument, match="method: needs a drafter that starts here"):
        ModelOptions(drafter=("h:1",), service=GivenSettings({"method": "suffix"}))
    with pytest.raises(InvalidArgument, match="skip: is needed for the method layer-skip"):
        GivenSettings({"method": "layer-skip"})


@pytest.mark.parametrize(
    ("drafting", "bundled", "own"),
    [
        (DraftingOptions(), AUTO_GAMMA, AUTO_GAMMA),
        (DraftingOptions(gamma=2), 2, 2),
        (DraftingOptions(gamma=0), 0, 0),
        (DraftingOptions(gate=Gate.NONE), BUNDLED_GAMMA, FIXED_GAMMA),
        (DraftingOptions(gate=Gate.DRAFT_CONFIDENCE, gamma=7), 7, 7),
    ],
)
def test_gamma_is_the_gates_own_where_none_is_given(drafting: DraftingOptions, bundled: int, own: int) -> None:
    for models, expected in ((ModelOptions(), bundled), (ModelOptions(target="t", draft="d"), own)):
        assert request_for(models, drafting, SamplingOptions()).max_gamma == expected


def read(tmp_path: Path, *lines: str) -> list[Prompt]:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(lines), "utf-8")
    return read_prompts(file, DEFAULTS)


def test_lines_override_the_flags(tmp_path: Path) -> None:
    first, second = read(
        tmp_path,
        '{"prompt": "a\u2028b", "temperature": 1, "logit_bias": {"3": 1.5}, "gate": "none", "stop": "x"}',
        "",
        '{"token_ids": [1, 2], "seed": 18446744073709551615, "verification": "rejection", "stop_token_ids": [4]}',
    )
    sampling = SamplingParams(temperature=1.0, logit_bias={3: 1.5})
    assert first == Prompt(GenerationRequest((), sampling, gate=Gate.NONE, stop=("x",)), "a\u2028b")
    rejection = GenerationRequest(
        (), DEFAULTS.sampling, seed=2**64 - 1, stop_token_ids=frozenset({4}), verification=Verification.REJECTION
    )
    assert second == Prompt(rejection, token_ids=(1, 2))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "a", "max_token": 3}', "line 2: unknown key 'max_token'"),
        ('{"prompt": "a", "max_tokens": "3"}', "line 2: max_tokens: Input should be a valid integer"),
        ('{"prompt": "a", "max_tokens": 0}', r"line 2: max_tokens: 0 is outside \[1, "),
        ('{"token_ids": [true]}', "line 2: token_ids.0: Input should be a valid integer"),
        ('{"prompt": "a", "token_ids": [1]}', "line 2: give either 'prompt' or 'token_ids'"),
        ('{"prompt": "a"', "line 2: Invalid JSON"),
        ("[1]", "line 2: Input should be an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        read(tmp_path, '{"prompt": "a"}', line)


def test_prompts_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no other standard input than that of the process.
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"prompt": "a"}\n{"prompt": "b"}\n'))
    assert [prompt.text for prompt in read_prompts(Path("-"), DEFAULTS)] == ["a", "b"]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no prompt"):
        read(tmp_path, "", " ")


def test_text_becomes_token_ids(byte_level: TextTokenizer) -> None:
    request = with_token_ids(Prompt(DEFAULTS, "hello"), byte_level)
    assert byte_level.decode(request.prompt_token_ids) == "hello"
    assert with_token_ids(Prompt(DEFAULTS, token_ids=(1, 2)), None).prompt_token_ids == (1, 2)
    with pytest.raises(InvalidArgument, match="prompt: is empty"):
        with_token_ids(Prompt(DEFAULTS, ""), byte_level)
    with pytest.raises(InvalidArgument, match="no tokenizer"):
        with_token_ids(Prompt(DEFAULTS, "hello"), None)


def test_services_are_made_large_enough() -> None:
    small = capacity_for([Prompt(DEFAULTS, "hello")], 1)
    assert (small.sessions, small.kv_tokens) == (16, 16 * PAGE_TOKENS)
    large = capacity_for([Prompt(DEFAULTS, "é" * PAGE_TOKENS), Prompt(DEFAULTS, token_ids=(1,))], 20)
    assert (large.sessions, large.kv_tokens) == (20, 20 * 3 * PAGE_TOKENS)
    assert Capacity(1, 1 << 30).kv_tokens == 1 << 17
