"""A tokenizer from a GGUF file's values: byte-level BPE, as most models since GPT-2 have it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specgate.errors import ModelLoadError
from specgate.gguf.file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONTROL, _USER_DEFINED = 3, 4
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
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
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
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    special = {name: tokens[values[f"{key}_token_id"]] for key, name in SPECIAL.items() if _is_id(values, key, tokens)}
    if len(vocabulary) != len(tokens) or any(len(pair) != 2 for pair in pairs):
        raise ModelLoadError(f"{file.path}: it has a token twice, or a merge that is no pair")
    whole_tokens_first = values["pre"] == "llama-bpe"
    try:
        backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=whole_tokens_first))
    # What the library raises where a merge has no token is of no kind of its own.
    except Exception as error:
        raise ModelLoadError(f"{file.path}: its tokenizer: {error}") from error
    backend.pre_tokenizer = _PRE_TOKENIZERS[values["pre"]]()
    backend.decoder = decoders.ByteLevel()
    if values["pre"] == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken(token, special=True) for token in _of_kind(tokens, kinds, _CONTROL)])
    backend.add_tokens([AddedToken(token, normalized=False) for token in _of_kind(tokens, kinds, _USER_DEFINED)])
    if values.get("add_bos_token", False) and "bos_token" in special:
        _begin_with(backend, special["bos_token"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=file.values.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False, **special,
    )  # fmt: skip


def _is_id(values: dict[str, Any], key: str, tokens: list[str]) -> bool:
    token_id = values.get(f"{key}_token_id")
    return isinstance(token_id, int) and 0 <= token_id < len(tokens)


def _of_kind(tokens: list[str], kinds: Any, kind: int) -> list[str]:
    return [token for token, own in zip(tokens, kinds, strict=True) if own == kind]


def _begin_with(backend: Any, token: str) -> None:
    from tokenizers import processors

    backend.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, backend.token_to_id(token))]
    )


def _by_pattern(pattern: str) -> Callable[[], Any]:
    def make() -> Any:
        from tokenizers import Regex, pre_tokenizers

        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


def _gpt2() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_PRE_TOKENIZERS = {
    "gpt-2": _gpt2, "smollm": _smollm, "qwen2": _by_pattern(_QWEN2), "llama-bpe": _by_pattern(_LLAMA3),
}  # fmt: skip
"""How text is cut before BPE, by what llama.cpp calls it (llama-vocab.cpp)."""
