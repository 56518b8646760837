"""Random texts in the tokens of two tokenizers: they are read as they are, and what is drafted continues them."""

from itertools import product
from typing import NamedTuple

from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from drafter_svc.sources.retokenized import Retokenized, TokenizerPair
from specgate.tokenizer import load_tokenizer, vocabulary_size
from tests.support.sentencepiece import sentencepiece_tokenizer
from tests.support.services import PAIR


def _trained(pre_tokenizer: pre_tokenizers.PreTokenizer, *, trims: bool = False) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer whose texts are parted so; one that ``trims`` tells places without spaces."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=trims)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["a b ab\n cd. ab.\n\n0 1 abc de. a):\n  a):\n  cd"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


_IN_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_BY_SIGNS = pre_tokenizers.Split(Regex(r" ?\w+| ?[^\s\w]+[\r\n]*|\s+"), "isolated")
TOKENIZERS: dict[str, PreTrainedTokenizerBase] = {
    "pieces": sentencepiece_tokenizer(),
    "across words": _trained(_IN_BYTES),
    "trimmed": _trained(pre_tokenizers.ByteLevel(add_prefix_space=False), trims=True),
    "signs and lines": _trained(pre_tokenizers.Sequence([_BY_SIGNS, _IN_BYTES])),
}
if (_bundled := load_tokenizer(str(PAIR / "target"))) is not None:
    TOKENIZERS["bundled"] = _bundled
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
SIZES = {name: vocabulary_size(one) for name, one in TOKENIZERS.items()}
PAIRS = {names: TokenizerPair(*map(TOKENIZERS.get, names)) for names in product(TOKENIZERS, repeat=2)}


def check(case: Case) -> None:
    """Fail where the draft reads another text, or where what is sent is not what it wrote."""
    theirs, own = TOKENIZERS[case.target], TOKENIZERS[case.draft]
    pair, cuts = PAIRS[case.draft, case.target], case.cuts
    ids = theirs(case.text)["input_ids"] or theirs("a")["input_ids"]
    growing, done = Retokenized(pair, ids[:1]), 1
    while done < len(ids):
        num = cuts[done % len(cuts)]
        growing.extend(ids[done : done + num])
        done += num
    read = b"".join(map(growing.bytes_of, growing.own_ids[len(pair.begins_with) :])).decode()
    said = b"".join(pair.target_bytes[i] for i in pair.without_beginning(ids)).decode()
    said = said.removeprefix(" ") if pair.begins_with_space else said
    # SentencePiece puts a space before a text.
    assert read in (said, f" {said}" if case.draft == "pieces" else said)
    drafted = own(case.continuation, add_special_tokens=False)["input_ids"]
    for n in (len(drafted), len(drafted) // 2, 1):
        found, ends = growing.in_target_tokens(drafted[:n], ended=False)
        written = b"".join(map(growing.bytes_of, drafted[:n]))
        assert written.startswith(b"".join(pair.target_bytes[i] for i in found))
        assert all(0 <= i < SIZES[case.target] for i in found)
        assert len(ends) == len(found)
