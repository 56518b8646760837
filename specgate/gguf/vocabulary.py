"""A tokenizer from a GGUF file's values: byte-level BPE, as most models since GPT-2 have it, or SentencePiece's BPE."""

from collections.abc import Callable, Collection
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile, naming

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_SPACE = "\u2581"
"""How SentencePiece writes a space."""
_MOST_CHARACTERS, _MOST_PAIRS = 128, 8
"""Of a piece; and for each of all pieces how many pairs of others make one. Llama 2 has 16, and 2."""
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def tokenizer_of(file: GgufFile) -> "PreTrainedTokenizerBase | None":
    """Return the tokenizer, with its chat template where the file has one; None: it has no tokenizer.

    Raises:
        ModelLoadError: it is of a kind that is not read, or its parts do not fit together.
    """
    with naming(file):
        return _tokenizer(file)


def _tokenizer(file: GgufFile) -> "PreTrainedTokenizerBase | None":
    from transformers import PreTrainedTokenizerFast

    values = {name.removeprefix("tokenizer.ggml."): value for name, value in file.values.items()}
    if "model" not in values:
        return None
    model, pre = values["model"], values.get("pre")
    if model != "llama" and (model != "gpt2" or pre not in _PRE_TOKENIZERS):
        known = f"read are 'llama', and 'gpt2' with {', '.join(_PRE_TOKENIZERS)}; give another with --tokenizer"
        raise ModelLoadError(f"{file.path}: its tokenizer is {model!r} with the pre-tokenizer {pre!r}; {known}")
    tokens, kinds = values.get("tokens"), values.get("token_type")
    is_pieces, template = model == "llama", file.values.get("tokenizer.chat_template")
    rest = values.get("scores" if is_pieces else "merges")
    if not isinstance(tokens, list) or kinds is None or len(kinds) != len(tokens) or rest is None:
        raise ModelLoadError(f"{file.path}: its tokenizer lacks tokens, their types, scores or merges")
    if template is not None and not isinstance(template, str):
        raise ModelLoadError(f"{file.path}: its chat template is no text")
    special = {name: tokens[values[f"{key}_token_id"]] for key, name in SPECIAL.items() if _is_id(values, key, tokens)}
    vocabulary = _own_vocabulary(tokens, kinds)
    backend = _by_pieces(values, vocabulary, special) if is_pieces else _by_bytes(values, vocabulary)
    _add(backend, tokens, kinds, {_UNKNOWN, _CONTROL} if is_pieces else {_CONTROL})
    if values.get("add_bos_token", is_pieces or pre == "llama-bpe") and "bos_token" in special:
        _begin_with(backend, special["bos_token"])
    for name, token in special.items():
        if tokens.index(token) != backend.token_to_id(token):
            raise ValueError(f"its {name} {token[:_MOST_CHARACTERS]!r} is none of its tokens")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=template, clean_up_tokenization_spaces=False, **special
    )


def _own_vocabulary(tokens: list[str], kinds: Any) -> dict[str, int]:
    """Return the ids by token. As in the tokenizers of Qwen and Llama, what comes behind the last is added to it."""
    num_own = len(tokens)
    # The very last ones only fill the model's rows.
    while num_own and kinds[num_own - 1] == _UNUSED:
        num_own -= 1
    while num_own and kinds[num_own - 1] in (_CONTROL, _USER_DEFINED):
        num_own -= 1
    vocabulary = {token: token_id for token_id, token in enumerate(tokens[:num_own])}
    if len(vocabulary) != num_own:
        raise ValueError("it has a token twice")
    return vocabulary


def _by_bytes(values: dict[str, Any], vocabulary: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    pairs = [tuple(merge.split(" ")) for merge in values["merges"]]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("it has a merge that is no pair")
    backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=values["pre"] == "llama-bpe"))
    backend.pre_tokenizer = _PRE_TOKENIZERS[values["pre"]]()
    backend.decoder = decoders.ByteLevel()
    if values["pre"] == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _by_pieces(values: dict[str, Any], vocabulary: dict[str, int], special: dict[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    pairs = _merges(vocabulary, values["scores"])
    unknown = special.get("unk_token")
    if unknown is None and not all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        raise ValueError("it has neither an unknown token nor one for each byte")
    backend = Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces, back = normalizers.Replace(" ", _SPACE), decoders.Replace(_SPACE, " ")
    has_prefix = values.get("add_space_prefix", True)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if has_prefix else spaces
    first = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence([back, decoders.ByteFallback(), decoders.Fuse(), *first])
    return backend


def _merges(vocabulary: dict[str, int], scores: Any) -> list[tuple[str, str]]:
    """Return which pieces two others make, the best first, in transformers' order: their fingerprints are compared."""
    if len(scores) < len(vocabulary) or not np.isfinite(scores).all():
        raise ValueError("it has too few scores, or some that are no numbers")
    pairs: list[tuple[float, int, int, str, str]] = []
    for piece, token_id in vocabulary.items():
        if len(piece) > _MOST_CHARACTERS:
            raise ValueError(f"it has a token of {len(piece)} characters; {_MOST_CHARACTERS} are read at the most")
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        known = [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary]
        known.sort(key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
        pairs += [(float(scores[token_id]), len(left), len(right), left, right) for left, right in known]
        if len(pairs) > _MOST_PAIRS * len(vocabulary):
            raise ValueError(f"its pieces are made of others in more than {_MOST_PAIRS} ways each")
    pairs.sort(key=lambda pair: pair[:3], reverse=True)
    return [pair[3:] for pair in pairs]


def _is_id(values: dict[str, Any], key: str, tokens: list[str]) -> bool:
    token_id = values.get(f"{key}_token_id")
    return isinstance(token_id, int) and 0 <= token_id < len(tokens)


def _add(backend: Any, tokens: list[str], kinds: Any, special: Collection[int]) -> None:
    """Add tokens that are cut out of a text whole, in the order of their ids. Raises ValueError: an id is another."""
    from tokenizers import AddedToken

    added = [i for i, kind in enumerate(kinds) if kind in special or kind == _USER_DEFINED]
    # Each call builds anew what finds them in a text.
    for is_special, run in groupby(added, lambda token_id: kinds[token_id] in special):
        flags = {"special": is_special, "normalized": False}
        add = backend.add_special_tokens if is_special else backend.add_tokens
        add([AddedToken(tokens[token_id], **flags) for token_id in run])
    for token_id in added:
        if (found := backend.token_to_id(tokens[token_id])) != token_id:
            raise ValueError(f"the token {tokens[token_id][:_MOST_CHARACTERS]!r} is {token_id} and {found}")


def _begin_with(backend: Any, token: str) -> None:
    from tokenizers import processors

    backend.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, backend.token_to_id(token))]
    )


def _by_pattern(pattern: str, *, trim_offsets: bool) -> Callable[[], Any]:
    def make() -> Any:
        from tokenizers import Regex, pre_tokenizers

        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=trim_offsets, use_regex=False)
        return pre_tokenizers.Sequence([split, pieces])

    return make


def _gpt2() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_PRE_TOKENIZERS = {
    "gpt-2": _gpt2, "smollm": _smollm, "qwen2": _by_pattern(_QWEN2, trim_offsets=False),
    "llama-bpe": _by_pattern(_LLAMA3, trim_offsets=True),
}  # fmt: skip
"""How text is cut before BPE, by what llama.cpp calls it (llama-vocab.cpp)."""
