"""The prompts and requests that measurements are made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.request_options import (
    DEFAULT_MAX_TOKENS,
    DraftingOptions,
    SamplingOptions,
    fixed_gamma,
    request_for,
)
from specgate.errors import InvalidArgument

BENCH_PROMPTS = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a text file without their line ends."""\n',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\nimport sys\nimport argparse\n\n\ndef main(argv=None):\n    parser = argparse.ArgumentParser(",
    "def binary_search(values, wanted):\n    low, high = 0, len(values) - 1\n    while low <= high:\n",
    "class TestParser(unittest.TestCase):\n    def setUp(self):\n        self.parser = Parser()\n\n    def test_",
    "def load(filename):\n    try:\n        with open(filename, 'rb') as file:\n            data = file.read()\n",
    "async def fetch(reader, writer, timeout=None):\n    loop = asyncio.get_running_loop()\n    future = loop.",
    '"""Utilities for working with dates and times."""\n\nimport datetime\n\n__all__ = [',
)
"""Beginnings of Python code of different kinds, easy and hard to go on with."""

DEMO_PROMPTS = (
    'def count_words(text):\n    """Return a dictionary that maps each word of text to how often it occurs."""\n',
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n        self.items = []\n",
    "def main():\n    parser = argparse.ArgumentParser(description=__doc__)\n    parser.add_argument('-v',",
)


def mixed_prompts() -> list[str]:
    """Return as many prompts as ``BENCH_PROMPTS`` has, of mixed lengths: 1, 2, 4 or 8 of them in one.

    Each ends with another one's text, so that no two go on alike.
    """
    count, doubled = len(BENCH_PROMPTS), BENCH_PROMPTS * 2
    return ["\n".join(doubled[end - (1 << end % 4) : end]) for end in range(count + 1, 2 * count + 1)]


def bench_request(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> GenerationRequest:
    """Return the request of all rows, the gate being the gated row's; ``max_tokens`` is a default.

    Raises:
        InvalidArgument: γ is 0, which leaves nothing to compare.
    """
    request = load_request(models, drafting, sampling, max_tokens)
    if drafting.gate in (None, Gate.NONE):
        # The latter, and the default, have rows of their own.
        return replace(request, gate=Gate.TARGET_CONFIDENCE, gamma=fixed_gamma(models, drafting.gamma))
    return request


def load_request(
    models: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingOptions,
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> GenerationRequest:
    """Return the request with speculation on, its gate as it was asked for. Raises as ``bench_request`` does."""
    request = request_for(models, drafting, sampling, max_tokens)
    if request.max_gamma == 0:
        raise InvalidArgument("gamma", "0 leaves nothing to compare; the smallest value here is 1")
    return full_length(request)


def full_length(request: GenerationRequest) -> GenerationRequest:
    """Return the request with nothing that ends it early, and a seed that all rows share."""
    return replace(request, ignore_eos=True, stop=(), stop_token_ids=frozenset(), seed=request.seed or 0)


def full_requests(prompts: Sequence[Prompt], tokenizer: TextTokenizer | None) -> list[GenerationRequest]:
    """Return the prompts as requests of token ids, each of full length."""
    return [full_length(with_token_ids(prompt, tokenizer)) for prompt in prompts]


def request_object(request: GenerationRequest) -> dict[str, Any]:
    """Return what the requests of a measurement have in common, as ``--json`` writes it."""
    return {
        "max_tokens": request.max_tokens,
        "gamma": request.max_gamma,
        "gate": str(request.gate),
        "gate_threshold": request.threshold,
        "draft_threshold": request.draft_threshold,
        "verification": str(request.verification),
        "temperature": request.sampling.temperature,
        "seed": request.seed,
    }
