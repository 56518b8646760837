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
from orchestrator.policy.gates import AUTO_GAMMA, FIXED_GAMMA, Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, read_prompts, with_token_ids
from orchestrator.terminal.request_options import (
    BUNDLED_GAMMA,
    DraftingOptions,
    SamplingOptions,
    request_for,
)
from orchestrator.terminal.service_flags import NAMES, ServiceFlags
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams, Verification

DEFAULTS = GenerationRequest(prompt_token_ids=(), sampling=SamplingParams(temperature=0.0))


def parsed(*flags: str) -> dict[str, Any]:
    """Return what a command that takes all groups receives."""
    received: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @takes_groups
    def command(models: ModelOptions, drafting: DraftingOptions, sampling: SamplingOptions, extra: int = 7) -> None:
        received.update(models=models, drafting=drafting, sampling=sampling, extra=extra)

    result = CliRunner().invoke(app, list(flags))
    assert result.exit_code == 0, result.output
    return received


def test_without_flags_every_group_has_its_defaults() -> None:
    assert parsed() == {
        "models": ModelOptions(),
        "drafting": DraftingOptions(),
        "sampling": SamplingOptions(),
        "extra": 7,
    }


def test_flags_reach_their_group() -> None:
    received = parsed(
        *("--verifier", "a:1", "--verifier", "b:2", "--pin", "--gate", "none", "--gamma", "4"),
        *("--stop", "x", "--stop-token-id", "3", "--temperature", "0.5", "--ignore-eos", "--extra", "1"),
    )
    assert received["models"].verifier == ("a:1", "b:2")
    assert received["models"].pin
    assert received["drafting"] == DraftingOptions(gamma=4, gate=Gate.NONE)
    assert received["sampling"] == SamplingOptions(temperature=0.5, stop=("x",), stop_token_id=(3,), ignore_eos=True)
    assert received["extra"] == 1


def test_every_flag_has_a_help_text() -> None:
    app = typer.Typer()
    app.command()(takes_groups(_with_all_groups))
    parameters = typer.main.get_command(app).params
    assert len(parameters) > 25
    assert all(parameter.help for parameter in parameters if parameter.name != "help")  # type: ignore[attr-defined]


def _with_all_groups(models: ModelOptions, drafting: DraftingOptions, sampling: SamplingOptions) -> None:
    """Take everything."""


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"verifier": ("nowhere",)}, "verifier"),
        ({"verifier": ("host:70000",)}, "verifier"),
        ({"drafter": ("host:0",)}, "drafter"),
        ({"device": "gpu"}, "device"),
        ({"device": "cuda:x"}, "device"),
        ({"run_ahead": 257}, "run_ahead"),
        ({"run_ahead": 0, "drafter": ("host:1",)}, "run_ahead"),
        ({"threads": 0}, "threads"),
        ({"threads": 2, "pin": True}, "threads"),
        ({"tls_certificate": "a"}, "tls_certificate"),
        ({"tls_certificate": "a", "tls_key": "b"}, "tls_ca"),
        ({"tls_ca": "a"}, "tls_ca"),
    ],
)
def test_bad_model_options_are_refused_by_name(values: dict[str, Any], field: str) -> None:
    given = {name: values.pop(name) for name in NAMES if name in values}
    with pytest.raises(InvalidArgument) as caught:
        ModelOptions(**values, service=ServiceFlags(given))
    assert caught.value.field == field


def test_which_models_are_used() -> None:
    bundled = ModelOptions()
    assert (bundled.target_model, bundled.draft_model) == (BUNDLED_TARGET, BUNDLED_DRAFT)
    named = ModelOptions(verifier=("h:1",), drafter=("h:2",))
    assert (named.target_model, named.draft_model) == (None, None)
    assert ModelOptions(target="t", draft="d").draft_model == "d"
    half_named = ModelOptions(verifier=("h:1",))
    assert (half_named.target_model, half_named.draft_model) == (None, BUNDLED_DRAFT)


def test_a_target_of_ones_own_needs_a_draft() -> None:
    ModelOptions(target="t", draft="d").check_draft()
    ModelOptions(target="t", drafter=("h:1",)).check_draft()
    with pytest.raises(InvalidArgument, match="draft: is needed beside --target"):
        ModelOptions(target="t").check_draft()


@pytest.mark.parametrize(
    ("drafting", "bundled", "own"),
    [
        (DraftingOptions(), AUTO_GAMMA, AUTO_GAMMA),
        (DraftingOptions(gate=Gate.AUTO), AUTO_GAMMA, AUTO_GAMMA),
        (DraftingOptions(gamma=2), 2, 2),
        (DraftingOptions(gamma=0), 0, 0),
        (DraftingOptions(gate=Gate.NONE), BUNDLED_GAMMA, FIXED_GAMMA),
        (DraftingOptions(gate=Gate.TARGET_CONFIDENCE), BUNDLED_GAMMA, FIXED_GAMMA),
        (DraftingOptions(gate=Gate.DRAFT_CONFIDENCE, gamma=7), 7, 7),
    ],
)
def test_gamma_is_the_gates_own_where_none_is_given(drafting: DraftingOptions, bundled: int, own: int) -> None:
    for models, expected in ((ModelOptions(), bundled), (ModelOptions(target="t", draft="d"), own)):
        assert request_for(models, drafting, SamplingOptions()).max_gamma == expected


def test_who_says_nothing_gets_the_same_gate_everywhere() -> None:
    request = request_for(ModelOptions(), DraftingOptions(), SamplingOptions())
    assert request.gate is Gate.AUTO
    assert (GenerationRequest((1,)).gate, GenerationRequest((1,)).max_gamma) == (request.gate, AUTO_GAMMA)
    assert Defaults().gate is request.gate


def test_all_flags_reach_the_request() -> None:
    drafting = DraftingOptions(6, Gate.DRAFT_CONFIDENCE, 0.3, Verification.REJECTION)
    sampling = SamplingOptions(0.7, 5, 0.9, 0.1, 1.1, 0.2, 0.3, 42, 2, 33, ("x",), (1, 2), True)
    assert request_for(ModelOptions(), drafting, sampling) == GenerationRequest(
        prompt_token_ids=(),
        sampling=SamplingParams(0.7, 5, 0.9, 0.1, 1.1, 0.2, 0.3),
        max_tokens=33,
        seed=42,
        stop=("x",),
        stop_token_ids=frozenset({1, 2}),
        ignore_eos=True,
        gamma=6,
        gate=Gate.DRAFT_CONFIDENCE,
        gate_threshold=0.3,
        verification=Verification.REJECTION,
        logprobs=2,
    )


@pytest.mark.parametrize("name", ["seed", "max_tokens", "logprobs"])
def test_what_only_a_session_would_refuse_is_refused_at_once(name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        request_for(ModelOptions(), DraftingOptions(), SamplingOptions(**{name: -1}))


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
    assert first.text == "a\u2028b"
    assert first.request.sampling == SamplingParams(temperature=1.0, logit_bias={3: 1.5})
    assert (first.request.gate, first.request.max_gamma, first.request.stop) == (Gate.NONE, FIXED_GAMMA, ("x",))
    assert second.token_ids == (1, 2)
    assert second.request.sampling == DEFAULTS.sampling
    assert second.request.seed == 18446744073709551615
    assert second.request.verification is Verification.REJECTION
    assert second.request.stop_token_ids == frozenset({4})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "a", "max_token": 3}', "line 2: unknown key 'max_token'"),
        ('{"prompt": "a", "max_tokens": "3"}', "line 2: max_tokens: Input should be a valid integer"),
        ('{"prompt": "a", "max_tokens": 0}', r"line 2: max_tokens: 0 is outside \[1, "),
        ('{"prompt": "a", "temperature": NaN}', "line 2: temperature: nan is outside"),
        ('{"prompt": "a", "gamma": 65}', r"line 2: gamma: 65 is outside \[0, 64\]"),
        ('{"prompt": "a", "gate": "maybe"}', "line 2: gate: Input should be 'none'"),
        ('{"prompt": "a", "seed": -1}', "line 2: seed: -1 is outside"),
        ('{"token_ids": [true]}', "line 2: token_ids.0: Input should be a valid integer"),
        ('{"prompt": "a", "token_ids": [1]}', "line 2: give either 'prompt' or 'token_ids'"),
        ("{}", "line 2: give either 'prompt' or 'token_ids'"),
        ('{"prompt": "a"', "line 2: Invalid JSON"),
        ("[1]", "line 2: Input should be an object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        read(tmp_path, '{"prompt": "a"}', line)


def test_prompts_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"prompt": "a"}\n{"prompt": "b"}\n'))
    assert [prompt.text for prompt in read_prompts(Path("-"), DEFAULTS)] == ["a", "b"]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="holds no prompt"):
        read(tmp_path, "", " ")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_prompts(tmp_path / "missing", DEFAULTS)


def test_text_becomes_token_ids(byte_level: TextTokenizer) -> None:
    request = with_token_ids(Prompt(DEFAULTS, "hello"), byte_level)
    assert byte_level.decode(request.prompt_token_ids) == "hello"
    assert with_token_ids(Prompt(DEFAULTS, token_ids=(1, 2)), None).prompt_token_ids == (1, 2)


@pytest.mark.parametrize("prompt", [Prompt(DEFAULTS, ""), Prompt(DEFAULTS, token_ids=())])
def test_an_empty_prompt_is_refused(byte_level: TextTokenizer, prompt: Prompt) -> None:
    with pytest.raises(InvalidArgument, match="prompt: is empty"):
        with_token_ids(prompt, byte_level)


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no tokenizer"):
        with_token_ids(Prompt(DEFAULTS, "hello"), None)


def test_services_are_made_large_enough() -> None:
    small = capacity_for([Prompt(DEFAULTS, "hello")], 1)
    assert (small.sessions, small.kv_tokens) == (16, 16 * PAGE_TOKENS)
    large = capacity_for([Prompt(DEFAULTS, "é" * PAGE_TOKENS), Prompt(DEFAULTS, token_ids=(1,))], 20)
    assert (large.sessions, large.kv_tokens) == (20, 20 * 3 * PAGE_TOKENS)
    assert Capacity(1, 1 << 30).kv_tokens == 1 << 17
