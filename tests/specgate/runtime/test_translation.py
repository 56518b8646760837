"""A draft under the target's names: the same logits for tokens that both have, and no others drafted."""

from pathlib import Path
from random import Random

import pytest
import torch

from specgate.errors import TokenizerMismatch
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import LoadedModel, load
from specgate.runtime.short_head import NEVER
from specgate.runtime.translation import Translation, share_of_a_text, special, spell, translate, translation
from specgate.token_bytes import token_bytes
from specgate.tokenizer import fingerprint, load_tokenizer
from tests.support.letters import write_letters
from tests.support.models import load_float32, quiet, write_llama
from tests.support.sentencepiece import sentencepiece_tokenizer
from tests.support.services import PAIR

OWN, THEIRS = "gabcdexy", "abcdefgh"
"""Letters by their ids. Both have a to e and g."""
NAMES = {THEIRS.index(letter): OWN.index(letter) for letter in OWN if letter in THEIRS}


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_letters(write_llama(tmp_path / "draft", len(OWN), seed=1, head_dim=16), OWN)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_letters(tmp_path / "target", THEIRS)


def load_for(draft: Path, target: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load(str(draft), torch.device("cpu"), dtype, quiet, drafts=True, target_tokenizer=str(target))


def test_logits_are_those_of_the_models_own_tokens(draft: Path, target: Path) -> None:
    loaded, own = load_for(draft, target), load_float32(draft)
    theirs = [Random(1).choice([*NAMES]) for _ in range(20)]
    found = loaded.model(torch.tensor([theirs])).logits[0]
    expected = own.model(torch.tensor([[NAMES[i] for i in theirs]])).logits[0]
    for name, row in NAMES.items():
        assert torch.allclose(found[:, name], expected[:, row], rtol=1e-5, atol=1e-5)
    assert (found[:, [i for i in range(len(THEIRS)) if i not in NAMES]] == NEVER).all()


def test_it_speaks_the_targets_tokens(draft: Path, target: Path) -> None:
    loaded = load_for(draft, target)
    assert (loaded.vocab_size, loaded.num_token_ids, loaded.tokenizer_name) == (8, 8, str(target))
    assert loaded.tokenizer_fingerprint == fingerprint(load_tokenizer(str(target)))
    assert loaded.shared == 6 / 8
    same = load_for(draft, draft)
    assert (same.shared, same.tokenizers, same.tokenizer_name) == (None, None, str(draft))


@pytest.mark.parametrize("packs", [False, True])
def test_every_way_to_compute_it_agrees(draft: Path, target: Path, packs: bool) -> None:
    """The check of the serving path compares it with the model's own forward."""
    loaded = load_for(draft, target)
    runner = prepare(loaded, 4096, 64, quiet, packs=packs)
    assert runner.vocab_size == len(THEIRS)


def test_a_token_that_the_draft_lacks_is_read_as_what_spells_it() -> None:
    ids = {b"a": 0, b"ab": 1, b"c": 2, b"abc": 3}
    assert spell(b"abcab", ids, 3) == [3, 1]
    assert spell(b"cxab", ids, 3) == [2, 1]
    assert spell(b"xy", ids, 3) == []


def test_what_is_read_for_it_is_their_mean(draft: Path) -> None:
    model, own = load_float32(draft).model, load_float32(draft).model.get_input_embeddings().weight
    translate(model, Translation(3, 1.0, {0: 5}, {0: [5], 1: [2, 3, 4]}))
    rows = model.get_input_embeddings().weight
    assert torch.equal(rows[0], own[5])
    assert torch.allclose(rows[1], own[2:5].mean(0))
    assert not rows[2].any()


def test_too_little_in_common_is_left_to_strings(tmp_path: Path, target: Path) -> None:
    other = write_letters(write_llama(tmp_path / "other", 8, seed=1, head_dim=16), "abcuvwxy")
    loaded = load_for(other, target)
    assert loaded.shared is None
    assert loaded.tokenizers is not None
    assert (loaded.vocab_size, loaded.num_token_ids, loaded.tokenizer_name) == (8, 8, str(target))


def test_a_vocabulary_that_cannot_be_read_is_refused(draft: Path, target: Path) -> None:
    own, theirs = load_tokenizer(str(draft)), load_tokenizer(str(target))
    assert own is not None
    assert theirs is not None
    own.backend_tokenizer.decoder = own.backend_tokenizer.pre_tokenizer = None
    with pytest.raises(TokenizerMismatch, match="the draft's tokenizer differs, and is none"):
        translation(own, theirs, len(OWN))


def test_a_byte_that_is_two_tokens_is_the_one_that_texts_have() -> None:
    """SentencePiece writes ``a`` and, for what has no token, bytes such as ``<0x61>``."""
    pieces = sentencepiece_tokenizer()
    known = token_bytes(pieces)
    piece, byte = pieces.get_vocab()["a"], pieces.get_vocab()["<0x61>"]
    assert known[byte] == known[piece] == b"a"
    assert [*known.values()].index(b"a") == [*known].index(piece)


def test_a_draft_of_bytes_says_too_little_of_a_text_and_one_of_most_words_enough() -> None:
    texts = dict(enumerate([b"a", b"b", b"ab", b"ba", b"aba", b"abab"]))
    assert share_of_a_text({0, 1}, texts) == 0.0
    assert share_of_a_text({0, 1, 2, 3}, texts) == pytest.approx((1 + 1 / 2) / (1 + 1 / 2 + 1 / 3 + 1 / 4))


def test_special_tokens_are_the_draft_s_of_the_same_use_and_rows_that_it_lacks_are_left_out() -> None:
    letters, pieces = load_tokenizer(str(PAIR / "target")), sentencepiece_tokenizer()
    assert letters is not None
    found = translation(letters, load_tokenizer(str(PAIR / "target")), 300)
    assert found is None or max(found.shared.values()) < 300
    assert special(letters, pieces, 4096)[pieces.eos_token_id] == letters.eos_token_id


def test_a_target_that_is_not_on_this_machine_is_told(draft: Path, tmp_path: Path) -> None:
    loaded = load_for(draft, tmp_path / "elsewhere")
    assert "elsewhere" in loaded.why_target_unread
    assert (loaded.shared, loaded.tokenizers, loaded.tokenizer_name) == (None, None, str(draft))
