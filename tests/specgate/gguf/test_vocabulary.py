"""A GGUF file's tokenizer cuts text as the folder's own does that it was written from."""

import io
import json
import math
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sentencepiece

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile
from specgate.gguf.vocabulary import tokenizer_of
from specgate.tokenizer import fingerprint, load_tokenizer
from tests.support.gguf_files import write_gguf
from tests.support.services import HELD_OUT_PROMPTS, PAIR

TEXTS = (*HELD_OUT_PROMPTS, "naïve 漢字 🙂 12345\n\n\ttabs  and   spaces ", "<|endoftext|>x<|endoftext|>", "")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    write_gguf(path, PAIR / "draft", "Q8_0", **{"tokenizer.chat_template": "{{ messages[0].content }}!"})
    return path


def test_texts_have_the_same_ids(file: Path) -> None:
    ours, own = load_tokenizer(str(file)), load_tokenizer(str(PAIR / "draft"))
    assert ours is not None
    assert own is not None
    for text in TEXTS:
        ids = own(text)["input_ids"]
        assert ours(text)["input_ids"] == ids
        assert ours.decode(ids) == own.decode(ids) == text
    assert ours.eos_token == own.eos_token
    assert ours.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "hello!"


def test_a_text_begins_as_the_file_says(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", PAIR / "draft", "Q8_0", **{"tokenizer.ggml.add_bos_token": True})
    ours, own = load_tokenizer(str(tmp_path / "x.gguf")), load_tokenizer(str(PAIR / "draft"))
    assert ours is not None
    assert own is not None
    assert ours("one two")["input_ids"] == [0, *own("one two")["input_ids"]]
    # Llama 3's files do not say it.
    write_gguf(tmp_path / "y.gguf", PAIR / "draft", "Q8_0", **{"tokenizer.ggml.pre": "llama-bpe"})
    llama = load_tokenizer(str(tmp_path / "y.gguf"))
    assert llama is not None
    assert llama("one")["input_ids"][0] == 0


def test_tokens_behind_the_vocabulary_are_added_to_it(tmp_path: Path) -> None:
    """As in the folders of Qwen and Llama: a draft's folder and a target's file have the same fingerprint."""
    source = Path(shutil.copytree(PAIR / "draft", tmp_path / "draft"))
    told = json.loads((source / "tokenizer.json").read_text())
    told["added_tokens"].append(told["added_tokens"][0] | {"id": 4096, "content": "<|im_end|>"})
    (source / "tokenizer.json").write_text(json.dumps(told))
    write_gguf(tmp_path / "x.gguf", source, "Q8_0")
    ours, own = load_tokenizer(str(tmp_path / "x.gguf")), load_tokenizer(str(source))
    assert ours is not None
    assert own is not None
    assert ours("one<|im_end|>two")["input_ids"] == own("one<|im_end|>two")["input_ids"]
    assert fingerprint(ours) == fingerprint(own)


def test_pieces_are_those_of_sentencepiece() -> None:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(HELD_OUT_PROMPTS), model_writer=made, vocab_size=400, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        user_defined_symbols=["<|turn|>"], minloglevel=2,
    )  # fmt: skip
    own = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    ours = tokenizer_of(GgufFile(Path("x.gguf"), _values_of(own), {}))
    assert ours is not None
    random = Random(1)
    drawn = ["".join(chr(random.choice((32, random.randrange(33, 0x2000)))) for _ in range(20)) for _ in range(100)]
    for text in (*TEXTS, *HELD_OUT_PROMPTS, *drawn, "  two  spaces", "\n"):
        ids = own.encode(text, add_bos=True)
        assert ours(text)["input_ids"] == ids
        assert ours.decode(ids, skip_special_tokens=True) == text
    # As in llama.cpp and in transformers, a text begins anew behind a token that is cut out whole.
    assert ours.tokenize("a<|turn|>a") == ["▁a", "<|turn|>", "▁a"]


def _values_of(own: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """Return a file's values as llama.cpp writes them."""
    ids = range(own.get_piece_size())
    names = {"<unk>": 2, "<s>": 3, "</s>": 3, "<|turn|>": 4}
    kinds = [6 if own.is_byte(i) else names.get(own.id_to_piece(i), 1) for i in ids]
    values = {
        "model": "llama", "tokens": [own.id_to_piece(i) for i in ids], "token_type": kinds,
        "scores": [own.get_score(i) for i in ids], "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
BASE: dict[str, Any] = {
    "model": "llama", "tokens": ["<unk>", *BYTES, "a", "b", "ab"], "token_type": [2, *[6] * 256, 1, 1, 1],
    "scores": [0.0] * 260, "unknown_token_id": 0,
}  # fmt: skip
LONGER = [size * "a" for size in range(2, 100)]
FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"scores": None}, "lacks tokens, their types, scores or merges"),
    "too few scores": ({"scores": [0.0] * 9}, "too few scores"),
    "scores that are none": ({"scores": [math.nan] * 260}, "scores, or some that are no numbers"),
    "a long piece": ({"tokens": [*BASE["tokens"][:-1], 129 * "a"]}, "a token of 129 characters"),
    "pieces of pieces": (
        {"tokens": [*BYTES, "a", *LONGER], "token_type": [6] * 355, "scores": [0.0] * 355, "unknown_token_id": None},
        "in more than 8 ways each",
    ),
    "no word for a byte": (
        {"tokens": ["<unk>", *BYTES[1:], "a", "b", "ab", "c"], "unknown_token_id": None}, "nor one for each byte",
    ),
    "a token of another id": (
        {"tokens": ["<unk>", *BYTES, "a", "<unk>", "ab"], "token_type": [2, *[6] * 256, 1, 3, 3]},
        "'<unk>' is 258 and 0",
    ),
    "a filler as the end": (
        {"token_type": [2, *[6] * 256, 1, 1, 5], "eos_token_id": 259}, "its eos_token 'ab' is none",
    ),
    "a template that is no text": ({"chat_template": 7}, "its chat template is no text"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_what_cannot_be_is_named(case: str) -> None:
    changes, told = FORGED[case]
    values = {f"tokenizer.{'' if name == 'chat_template' else 'ggml.'}{name}": value
              for name, value in (BASE | changes).items() if value is not None}  # fmt: skip
    with pytest.raises(ModelLoadError, match=told):
        tokenizer_of(GgufFile(Path("x.gguf"), values, {}))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("tokenizer.ggml.model", "t5", "its tokenizer is 't5'"),
        ("tokenizer.ggml.pre", "tekken", "the pre-tokenizer 'tekken'; read are .*; give another with --tokenizer"),
    ],
)
def test_a_tokenizer_that_is_not_read_is_named(name: str, value: str, told: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "y.gguf", PAIR / "draft", "Q8_0", **{name: value})
    with pytest.raises(ModelLoadError, match=told):
        load_tokenizer(str(tmp_path / "y.gguf"))
    with pytest.raises(ModelLoadError, match="there is no folder"):
        load_tokenizer(str(tmp_path / "y.gguf"), str(tmp_path / "none"))
