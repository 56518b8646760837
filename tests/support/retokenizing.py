"""Random texts in the tokens of two tokenizers: they are read as they are, and what is drafted continues them."""

from itertools import product
from typing import NamedTuple

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from drafter_svc.sources.retokenized import Retokenized, TokenizerPair
from specgate.tokenizer import load_tokenizer, vocabulary_size
from tests.support.sentencepiece import sentencepiece_tokenizer
from tests.support.services import PAIR


def _across_words() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens may begin in one word and end in the next."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["a b ab\n cd. ab\n\n0 1 abc de. a"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


TOKENIZERS = {
    "bytes": load_tokenizer(str(PAIR / "target")), "pieces": sentencepiece_tokenizer(), "across": _across_words(),
}  # fmt: skip
_TEXTS = st.text(
    st.characters(codec="utf-8") | st.sampled_from("  .\n\nabcdabcdij0123456789é\u0301日本🙂\u200d"), max_size=200
)


class Case(NamedTuple):
    """``cuts`` are how many tokens come at a time."""

    draft: str
    target: str
    text: str
    continuation: str
    cuts: list[int]


CASES = st.builds(Case, *(st.sampled_from([*TOKENIZERS]),) * 2, _TEXTS, _TEXTS, st.lists(st.integers(1, 7), min_size=1))
SIZES = {name: vocabulary_size(one) for name, one in TOKENIZERS.items() if one is not None}
PAIRS = {names: TokenizerPair(*map(TOKENIZERS.get, names)) for names in product(TOKENIZERS, repeat=2)}


def check(case: Case) -> None:
    """Fail where the draft reads another text, or where what is sent is not what it wrote."""
    theirs, own = TOKENIZERS[case.target], TOKENIZERS[case.draft]
    assert theirs is not None
    assert own is not None
    pair, cuts = PAIRS[case.draft, case.target], case.cuts
    ids = theirs(case.text)["input_ids"] or theirs("a")["input_ids"]
    growing, done = Retokenized(pair, ids[:1]), 1
    while done < len(ids):
        num = cuts[done % len(cuts)]
        growing.extend(ids[done : done + num])
        done += num
    read = b"".join(map(growing.bytes_of, growing.own_ids[len(pair.begins_with) :])).decode()
    said = b"".join(pair.target_bytes[i] for i in pair.without_beginning(ids)).decode()
    # SentencePiece puts a space before what it reads.
    assert read == said or ("pieces" in case[:2] and read.replace(" ", "") == said.replace(" ", ""))
    drafted = own(case.continuation, add_special_tokens=False)["input_ids"]
    for n in (len(drafted), len(drafted) // 2, 1):
        found, ends = growing.in_target_tokens(drafted[:n], ended=False)
        written = b"".join(map(growing.bytes_of, drafted[:n]))
        assert written.startswith(b"".join(pair.target_bytes[i] for i in found))
        assert all(0 <= i < SIZES[case.target] for i in found)
        assert len(ends) == len(found)
