"""``orchestrator prove`` on the bundled pair: a sound verifier passes, one with a broken rule does not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specgate_lab.proof.plan import SEEDED
from tests.support.models import Mix, write_llama
from tests.support.orchestrating import Cli
from tests.support.services import PAIR, Service, running

# The second half of what either may go on with is often what only the target would say.
PROMPTS = ("class Stack:\n    def ", "import ")
SMALL = ("--max-tokens", "8", "--samples", "50")
TEXTS = ("greedy", *(f"shared noise, {name}" for name in SEEDED))


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return ["--prompts", str(file)]


@pytest.fixture(scope="module")
def drafter() -> Iterator[Service]:
    with running("drafter", PAIR / "draft", "--max-sessions", "32") as service:
        yield service


def outcomes(proof: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in proof["checks"]}


@pytest.mark.timeout(300)
def test_the_bundled_pair_passes(orchestrator: Cli, prompts: list[str], tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    code, shown, _ = orchestrator("prove", *SMALL, *prompts, "--json", str(file))
    assert code == 0
    proof = json.loads(file.read_text())
    assert proof["lossless"]
    assert set(outcomes(proof).values()) == {"pass"}
    assert "122 of 122 texts are exactly what the target alone writes" in proof["verdict"]
    assert proof["verdict"] in shown
    alone, greedy, *_, law = proof["checks"]
    assert [len(margins) for margins in alone["margins"]] == [8, 8]
    assert 0 < greedy["accepted"] < greedy["drafted"]
    assert 0 < law["accepted"] < law["drafted"]
    assert all(0.001 < test["corrected_p"] <= 1 for test in law["tests"])


PASSED = {**dict.fromkeys(TEXTS, "pass"), "target alone": "skipped", "rejection, law": "pass"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("rule", "size", "failed"),
    [
        # The residual is the plain target.
        ("residual", ("--max-tokens", "4", "--samples", "200"), ("rejection, law",)),
        # A draft is accepted though it disagrees.
        ("agreement", SMALL, TEXTS),
        # A grammar holds for the first row alone.
        ("mask", SMALL, ("shared noise, a grammar",)),
    ],
)
def test_a_broken_rule_fails_the_checks_that_depend_on_it(
    orchestrator: Cli,
    prompts: list[str],
    drafter: Service,
    tmp_path: Path,
    rule: str,
    size: tuple[str, ...],
    failed: tuple[str, ...],
) -> None:
    file, module = tmp_path / "proof.json", ("tests.support.broken_verifier", "--break", rule)
    with running("verifier", PAIR / "target", "--max-sessions", "32", module=module) as verifier:
        named = ["--verifier", verifier.endpoint, "--drafter", drafter.endpoint]
        code, shown, _ = orchestrator("prove", *prompts, *size, *named, "--json", str(file))
    assert code == 1
    assert "NOT lossless: " in shown
    proof = json.loads(file.read_text())
    assert not proof["lossless"]
    assert outcomes(proof) == {**PASSED, **dict.fromkeys(failed, "fail")}


@pytest.mark.timeout(300)
def test_a_pair_without_a_tokenizer_is_proved_but_for_grammars(orchestrator: Cli, tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target", seed=1)
    draft = write_llama(tmp_path / "draft", seed=2, mix=Mix(1, 0.9))
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "proof.json"
    prompts.write_text('{"token_ids": [5, 6, 7]}\n')
    pair = ["--target", str(target), "--draft", str(draft), "--no-hf"]
    code, _, _ = orchestrator("prove", *pair, *SMALL, "--prompts", str(prompts), "--json", str(file))
    assert code == 0
    found = outcomes(json.loads(file.read_text()))
    skipped = {name for name, outcome in found.items() if outcome == "skipped"}
    assert skipped == {"target alone", "shared noise, a grammar"}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--samples 10", "--samples: 10 is outside [50, 1000000]"),
        ("--max-tokens 0", "--max-tokens: 0 is outside [1, "),
        ("--json /missing/proof.json", "--json: /missing/proof.json cannot be written"),
        ("--target t", "--draft: is required with a target of your own"),
        ("--prompts {prompts}", "a proof sets every field of its requests"),
    ],
)
def test_bad_input_is_told_before_anything_starts(orchestrator: Cli, tmp_path: Path, flags: str, problem: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x", "temperature": 2}')
    code, shown, told = orchestrator("prove", *flags.format(prompts=prompts).split())
    assert (code, shown) == (2, "")
    assert problem in told
