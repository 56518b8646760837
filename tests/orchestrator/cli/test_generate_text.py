"""``orchestrator generate`` with a tokenizer of Llama 2's kind, over fake services: its text and colours."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.decode.text import TextTokenizer
from specgate.types import SessionSpec
from tests.support.fake_services import serving
from tests.support.fakes import FakeDrafter, FakeVerifier
from tests.support.loop_thread import LoopThread
from tests.support.orchestrating import Cli
from tests.support.sentencepiece import END, ids_of, sentencepiece_tokenizer
from tests.support.tool_calls import Script

PROMPT = "The capital of France is"
TOKENIZER = TextTokenizer(sentencepiece_tokenizer())
HALF, REST = (ids_of(TOKENIZER, half) for half in (["<0xF0>", "<0x9F>"], ["<0xA6>", "<0x8A>"]))
"""Of a fox."""
ANSWER = ids_of(TOKENIZER, ["▁Paris", ".", END])


def scripted(kind: Any, spec: SessionSpec, **fields: Any) -> Any:
    is_unfinished = spec.prompt_token_ids[-2:] == HALF
    return kind(spec, model=Script((*REST, *ANSWER) if is_unfinished else ANSWER, len(spec.prompt_token_ids)), **fields)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The flags that name a pair that agrees in all tokens, and a folder with its tokenizer."""
    folder: Path = tmp_path_factory.mktemp("target")
    sentencepiece_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    known = {"tokenizer_fingerprint": {}, "vocab_size": TOKENIZER.vocab_size}
    verifying = serving("verifier", partial(scripted, FakeVerifier), **known)
    drafting = serving("drafter", partial(scripted, FakeDrafter, agreement=1.0), **known)
    with LoopThread() as loop, loop.entered(verifying) as verifier, loop.entered(drafting) as drafter:
        yield ["--target", str(folder), "--verifier", verifier.endpoint, "--drafter", drafter.endpoint]


def test_text(orchestrator: Cli, services: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--gamma", "1", "--gate", "none", *services]
    code, shown, _ = orchestrator("generate", PROMPT, "--json", *flags)
    assert (code, json.loads(shown)["text"]) == (0, " Paris.")
    unfinished = tmp_path / "prompts.jsonl"
    unfinished.write_text(json.dumps({"token_ids": [*TOKENIZER.encode(PROMPT), *HALF]}))
    assert f"\n{PROMPT}🦊 Paris.\n" in orchestrator("generate", "--prompts", str(unfinished), *flags)[1]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"{PROMPT}\x1b[0m\x1b[32m Paris\x1b[0m\x1b[36m.\x1b[0m" in orchestrator("generate", PROMPT, *flags)[1]
