"""A tokenizer from a GGUF file's values: byte-level BPE, as most models since GPT-2 have it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile, naming

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
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
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    values = {name.removeprefix("tokenizer.ggml."): value for name, value in file.values.items()}
    tokens, merges, kinds = (values.get(name) for name in ("tokens", "merges", "token_type"))
    if "model" not in values:
        return None
    if values["model"] != "gpt2" or values.get("pre") not in _PRE_TOKENIZERS:
        told = f"{values['model']!r} with the pre-tokenizer {values.get('pre')!r}"
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelLoadError(f"{file.path}: its tokenizer is {told}; read are 'gpt2' with {known}")
    if not isinstance(tokens, list) or not isinstance(merges, list) or kinds is None or len(kinds) != len(tokens):
        raise ModelLoadError(f"{file.path}: its tokenizer lacks tokens, their types or merges")
    num_own = len(tokens)
    # As in the tokenizers of Qwen and Llama, what comes behind the vocabulary is added to it.
    while num_own and kinds[num_own - 1] in (_CONTROL, _USER_DEFINED, _UNUSED):
        num_own -= 1
    vocabulary = {token: token_id for token_id, token in enumerate(tokens[:num_own])}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    special = {name: tokens[values[f"{key}_token_id"]] for key, name in SPECIAL.items() if _is_id(values, key, tokens)}
    if len(vocabulary) != num_own or any(len(pair) != 2 for pair in pairs):
        raise ModelLoadError(f"{file.path}: it has a token twice, or a merge that is no pair")
    is_llama = values["pre"] == "llama-bpe"
    backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=is_llama))
    backend.pre_tokenizer = _PRE_TOKENIZERS[values["pre"]]()
    backend.decoder = decoders.ByteLevel()
    if values["pre"] == "qwen2":
        backend.normalizer = normalizers.NFC()
    _add(backend, tokens, kinds)
    if values.get("add_bos_token", is_llama) and "bos_token" in special:
        _begin_with(backend, special["bos_token"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=file.values.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False, **special,
    )  # fmt: skip


def _is_id(values: dict[str, Any], key: str, tokens: list[str]) -> bool:
    token_id = values.get(f"{key}_token_id")
    return isinstance(token_id, int) and 0 <= token_id < len(tokens)


def _add(backend: Any, tokens: list[str], kinds: Any) -> None:
    """Add tokens that are cut out of a text whole, in the order of their ids. Raises ValueError: an id is another."""
    from tokenizers import AddedToken

    for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False)])
        if kind in (_CONTROL, _USER_DEFINED) and backend.token_to_id(token) != token_id:
            raise ValueError(f"the token {token!r} is {token_id} and {backend.token_to_id(token)}")


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
