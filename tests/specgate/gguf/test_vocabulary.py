"""A GGUF file's tokenizer cuts text as the folder's own does that it was written from."""

import json
import shutil
from pathlib import Path

import pytest

from specgate.errors import ModelLoadError
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


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("tokenizer.ggml.model", "llama", "its tokenizer is 'llama'"),
        ("tokenizer.ggml.pre", "tekken", "the pre-tokenizer 'tekken'; read are"),
    ],
)
def test_a_tokenizer_that_is_not_read_is_named(name: str, value: str, told: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "y.gguf", PAIR / "draft", "Q8_0", **{name: value})
    with pytest.raises(ModelLoadError, match=told):
        load_tokenizer(str(tmp_path / "y.gguf"))
