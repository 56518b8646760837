"""Incremental text adds up to the whole, and tokenizers that differ are told apart."""

import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument, ModelLoadError
from specgate.tokenizer import COMPONENTS, fingerprint, first_difference, load_tokenizer
from tests.support.sentencepiece import ids_of
from tests.support.services import PAIR

TEXT = "the café's 🦊 said 日本語,\n\tand ran\u200d. naïve"


class Slow:
    """What the facade needs of a tokenizer that is written in Python."""

    backend_tokenizer = None
    all_special_ids = (0,)

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: list[int], **_: object) -> str:
        return self._tokenizer.decode(ids)

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1}


def test_encode_and_decode(byte_level: TextTokenizer) -> None:
    ids = byte_level.encode(TEXT)
    assert byte_level.decode(ids) == byte_level.decode((*ids, 0)) == TEXT
    assert all(0 <= token_id < byte_level.vocab_size for token_id in ids)
    assert byte_level.eos_token_id == 0
    # One token alone: special ones too, and parts of a character.
    assert (byte_level.decode([0]), byte_level.token_text(0)) == ("", "<|end|>")
    assert "|".join(map(byte_level.token_text, byte_level.encode("the fox"))) == "the| fox"
    assert "\ufffd" in byte_level.token_text(byte_level.encode("🦊")[0])


@pytest.mark.parametrize("is_slow", [False, True])
def test_no_step_shows_half_a_character(byte_level: TextTokenizer, is_slow: bool) -> None:
    tokenizer = TextTokenizer(Slow(byte_level)) if is_slow else byte_level
    decoder = tokenizer.incremental()
    pieces = [decoder.step((token_id,)) for token_id in byte_level.encode(TEXT)]
    assert "".join(pieces) == TEXT
    assert "\ufffd" not in "".join(pieces)
    assert "" in pieces
    assert decoder.flush() == ""
    # At the end what is no character is shown, once.
    ids = byte_level.encode("a🦊")[:-1]
    decoder = tokenizer.incremental()
    assert decoder.step(ids) == "a"
    assert decoder.flush() == byte_level.decode(ids)[1:] != ""
    assert decoder.flush() == ""


def test_random_tokens_add_up(byte_level: TextTokenizer) -> None:
    """Also bytes that are no UTF-8, and special tokens in the middle."""
    for seed in range(300):
        rng = random.Random(seed)
        ids = [rng.randrange(byte_level.vocab_size) for _ in range(rng.randrange(1, 60))]
        decoder, text = byte_level.incremental(), ""
        for start in range(0, len(ids), size := rng.randrange(1, 5)):
            text += decoder.step(ids[start : start + size])
        assert text + decoder.flush() == byte_level.decode(ids), seed


def test_sentencepiece_adds_up(sentencepiece: TextTokenizer) -> None:
    tokens = ("▁the", "▁fox", "<0x0A>", "s", "<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>")
    ids = ids_of(sentencepiece, tokens)
    decoder = sentencepiece.incremental()
    pieces = [decoder.step((token_id,)) for token_id in ids]
    assert pieces == ["the", " fox", "\n", "s", "", "", "", "🦊"]
    assert "".join(pieces) == sentencepiece.decode(ids)


def test_sentencepiece_nonsense_never_raises(sentencepiece: TextTokenizer) -> None:
    """The decoder takes text back that bytes before it made readable; a stream goes on from where it is."""
    size, special = sentencepiece.vocab_size, sentencepiece.special_token_ids
    for seed in range(100):
        rng = random.Random(seed)
        ids = [rng.randrange(3, 259) if rng.random() < 0.6 else rng.randrange(size) for _ in range(40)]
        decoder = sentencepiece.incremental()
        text = decoder.step(ids) + decoder.flush()
        readable = [token_id for token_id in ids if token_id >= 259 and token_id not in special]
        kept = [piece for token_id in readable if (piece := sentencepiece.backend.id_to_token(token_id).strip("▁"))]
        assert all(piece in text for piece in kept), seed


def test_a_folder_without_a_tokenizer_has_none_and_a_broken_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert TextTokenizer.load(str(tmp_path)) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=tmp_path.name):
        load_tokenizer(str(tmp_path))


def changed(folder: Path, to: Path, change) -> dict[str, str]:
    """Return the fingerprint of the tokenizer in ``folder`` after ``change`` of its file."""
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    content = json.loads((to / "tokenizer.json").read_text())
    change(content)
    (to / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(str(to))
    assert tokenizer is not None
    return fingerprint(tokenizer)


def swap_two_tokens(content) -> None:
    vocab = content["model"]["vocab"]
    (one, first), (other, second) = list(vocab.items())[300:302]
    vocab[one], vocab[other] = second, first


@pytest.mark.parametrize(
    ("change", "component"),
    [
        (lambda content: None, None),
        (swap_two_tokens, "vocabulary"),
        (lambda content: content["model"]["merges"].reverse(), "merges"),
        (lambda content: content.update(normalizer={"type": "Lowercase"}), "normalizer"),
        (lambda content: content["pre_tokenizer"].update(add_prefix_space=True), "pre_tokenizer"),
        (lambda content: content["added_tokens"][0].update(special=False), None),
        (lambda content: content["added_tokens"][0].update(content="<|stop|>"), "added_tokens"),
    ],
    ids=["same", "vocabulary", "merges", "normalizer", "pre_tokenizer", "flag", "added"],
)
def test_first_difference_is_named(
    byte_level: TextTokenizer, tokenizer_folder: Path, tmp_path: Path, change, component: str | None
) -> None:
    assert first_difference(byte_level.fingerprint, changed(tokenizer_folder, tmp_path, change)) == component


def test_fingerprints_name_their_components_and_what_one_side_does_not_know_is_no_difference(
    byte_level: TextTokenizer,
) -> None:
    assert tuple(byte_level.fingerprint) == COMPONENTS
    assert all(len(digest) == 64 for digest in byte_level.fingerprint.values())
    assert list(TextTokenizer(Slow(byte_level)).fingerprint) == ["vocabulary"]
    assert first_difference({}, byte_level.fingerprint) is None
    assert first_difference(byte_level.fingerprint, {}) is None


def test_merges_of_older_files_are_the_same_merges() -> None:
    def tokenizer_of(merge: object) -> SimpleNamespace:
        text = json.dumps({"model": {"vocab": {"a b": 0}, "merges": [merge]}})
        return SimpleNamespace(backend_tokenizer=SimpleNamespace(to_str=lambda: text))

    assert fingerprint(tokenizer_of("a b")) == fingerprint(tokenizer_of(["a", "b"]))


CHAT_TEMPLATE = """\
{%- if messages|length > 2 %}{{ raise_exception('two at the most') }}{% endif %}
{%- for message in messages %}[{{ message.role }}]{{ message.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


def chatting(backend: Tokenizer, chat_template: str | None = CHAT_TEMPLATE) -> TextTokenizer:
    from transformers import PreTrainedTokenizerFast

    return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=chat_template))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({}, "[user]Hi<|end|>[assistant]Yes<|end|>[assistant]"),
        ({"add_generation_prompt": False}, "[user]Hi<|end|>[assistant]Yes<|end|>"),
        ({"add_generation_prompt": False, "continue_final_message": True}, "[user]Hi<|end|>[assistant]Yes"),
    ],
)
def test_conversation(byte_level_backend: Tokenizer, flags: dict[str, bool], text: str) -> None:
    tokenizer = chatting(byte_level_backend)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    assert tokenizer.encode_chat(messages, **flags) == tokenizer.encode(text, add_special_tokens=False)


def test_conversation_that_cannot_be_encoded(byte_level_backend: Tokenizer) -> None:
    message = {"role": "user", "content": "Hi"}
    with pytest.raises(InvalidArgument, match="no chat template"):
        chatting(byte_level_backend, None).encode_chat([message])
    with pytest.raises(InvalidArgument, match="two at the most"):
        chatting(byte_level_backend).encode_chat([message] * 3)
    with pytest.raises(InvalidArgument, match="not compatible"):
        chatting(byte_level_backend).encode_chat([message], continue_final_message=True)


def test_a_text_needs_no_torch() -> None:
    """Else a command that holds no model, and the gateway, would take two seconds and 250 MB more."""
    code = "import sys; from orchestrator.decode.text import TextTokenizer as T; T.load(sys.argv[1]); "
    program = [sys.executable, "-c", code + "print('torch' in sys.modules)", str(PAIR / "target")]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "False\n"
    from transformers import AutoTokenizer

    ours, chosen = load_tokenizer(str(PAIR / "target")), AutoTokenizer.from_pretrained(PAIR / "target")
    assert ours is not None
    assert fingerprint(ours) == fingerprint(chosen)
    assert type(ours) is type(chosen)
