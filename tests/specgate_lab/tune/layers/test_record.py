"""A recorded text, looked at as the search does, is what the target drew."""

import json
from pathlib import Path

import pytest

from orchestrator.decode.text import TextTokenizer
from specgate.runtime.layer_skip import LayerSkip
from specgate.runtime.layer_trials import Text, ranks
from specgate.types import SamplingParams
from tests.support.models import load_float32
from tests.support.orchestrating import Cli
from tests.support.services import PAIR

PROMPT = "def main():"
NOTHING = LayerSkip(frozenset(), frozenset())


@pytest.mark.parametrize(
    "law",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=20, top_p=0.9),
        SamplingParams(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    ],
    ids=["plain", "filters", "penalties"],
)
def test_the_whole_target_would_have_drafted_all_of_it(orchestrator: Cli, law: SamplingParams) -> None:
    names = ("temperature", "top_k", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    flags = [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(law, name)))]
    code, shown, told = orchestrator("generate", PROMPT, *flags, "--gamma", "0", "--seed", "7", "--json")
    assert code == 0, told
    answer = json.loads(shown)
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    assert tokenizer is not None
    text = Text(tokenizer.encode(PROMPT), answer["token_ids"], 7, law)
    found = ranks(load_float32(Path(PAIR / "target")), NOTHING, text)
    # One place may be a near tie.
    assert sum(rank > 0 for rank in found) <= 1
    assert len(found) > 20
