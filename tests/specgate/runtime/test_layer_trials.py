"""What a trial says of a text is what a drafter without these blocks would have drafted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.runtime.layer_skip import LayerSkip, left_out
from specgate.runtime.layer_trials import FAR, Text, ranks
from specgate.types import SamplingParams
from tests.support.architecture_runs import write_case
from tests.support.architectures import CASES
from tests.support.models import load_float32, write_llama

GREEDY = SamplingParams(temperature=0.0)
NOTHING = LayerSkip(frozenset(), frozenset())
PROMPT = (3, 5, 7, 9)


def answer_of(model: Any, length: int = 20) -> tuple[int, ...]:
    """The greedy answer, by plain forwards."""
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(length):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[len(PROMPT) :])


def test_the_whole_model_agrees_with_itself_everywhere(tmp_path: Path) -> None:
    loaded = load_float32(write_llama(tmp_path))
    assert ranks(loaded, NOTHING, Text(PROMPT, answer_of(loaded.model), 0, GREEDY)) == [0] * 20


def test_a_place_is_counted_among_the_cut_models_scores(tmp_path: Path) -> None:
    loaded, skip = load_float32(write_llama(tmp_path)), LayerSkip(frozenset({1}), frozenset({0}))
    answer = answer_of(loaded.model)
    found = ranks(loaded, skip, Text(PROMPT, answer, 0, GREEDY))
    with torch.inference_mode(), left_out(loaded.model, skip):
        logits = loaded.model(torch.tensor([[*PROMPT, *answer]]), use_cache=False).logits[0]
    order = logits[len(PROMPT) - 1 : -1].argsort(-1, descending=True).tolist()
    assert found == [min(row.index(token), FAR) for row, token in zip(order, answer, strict=True)]
    assert any(found)
    # The model is whole again.
    assert ranks(loaded, NOTHING, Text(PROMPT, answer, 0, GREEDY)) == [0] * 20


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused], ids=str)
def test_blocks_come_back_in_every_architecture(case: Any, tmp_path: Path) -> None:
    model = load_float32(write_case(case, tmp_path)).model
    names = [name for name, _ in model.named_modules()]
    with left_out(model, LayerSkip(frozenset({0, 1}), frozenset({1}))):
        assert [name for name, _ in model.named_modules()] != names
    assert [name for name, _ in model.named_modules()] == names


def test_the_process_answers_a_line_with_a_line(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    answer = answer_of(load_float32(folder).model)
    law = {"temperature": 0.0, "logit_bias": {"3": 0.0}}
    text = {"prompt": PROMPT, "answer": answer, "seed": 1, "sampling": law}
    lines = [{"texts": [text]}, {"attention": [], "mlp": [], "num_texts": 1}]
    told = subprocess.run(
        [sys.executable, "-m", "specgate.runtime.layer_trials", str(folder), "--device", "cpu"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        check=True, timeout=100, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    ready, texts, found = map(json.loads, told)
    assert (ready["num_layers"], ready["has_mlp_blocks"], ready["dtype"]) == (2, True, "float32")
    assert texts["count"] == 1
    assert found["ranks"] == [[0] * 20]
