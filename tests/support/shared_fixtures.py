"""Fixtures for tests of several packages: tokenizers, the bundled pair's services, and command lines run here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from orchestrator.decode.text import TextTokenizer
from tests.support.orchestrating import Cli
from tests.support.sentencepiece import sentencepiece_tokenizer
from tests.support.services import PAIR, Service, running

CORPUS = [
    "def main():\n    print('hello, wörld')\n",
    "the quick brown fox jumps over the lazy dog. The end.",
    "naïve café 日本語 🦊 emoji, tabs\tand\nnewlines",
] * 5


@pytest.fixture(scope="session")
def byte_level_backend() -> Tokenizer:
    """Byte-level BPE: one token may hold a part of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(byte_level_backend: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a byte-level tokenizer in it."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=byte_level_backend, eos_token="<|end|>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def byte_level(tokenizer_folder: Path) -> TextTokenizer:
    tokenizer = TextTokenizer.load(str(tokenizer_folder))
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="session")
def sentencepiece() -> TextTokenizer:
    return TextTokenizer(sentencepiece_tokenizer())


@pytest.fixture(scope="session")
def bundled_services() -> Iterator[tuple[Service, Service]]:
    """A drafter and a verifier with the bundled pair, which no test may harm: their start takes longer than a test."""
    with running("drafter", PAIR / "draft") as drafter, running("verifier", PAIR / "target") as verifier:
        yield drafter, verifier


@pytest.fixture
def orchestrator(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run one command line in this process; return exit code, standard output and standard error."""

    from orchestrator.cli import main as cli

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.run(list(argv))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run
