"""A model's tokenizer, and a fingerprint of it that two services can compare without sending it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgate.errors import ModelLoadError
from specgate.gguf.file import is_gguf, read_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COMPONENTS = ("vocabulary", "merges", "normalizer", "pre_tokenizer", "added_tokens")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)


def load_tokenizer(path: str, of_file: str | None = None) -> "PreTrainedTokenizerBase | None":
    """Return the tokenizer of the model at ``path`` (a folder, hub id or GGUF file), None for a folder without one.

    Args:
        of_file: a folder or hub id whose tokenizer a GGUF file has, in place of its own.

    Raises:
        ModelLoadError: there is no such model, or its tokenizer cannot be read without code of its own.
    """
    if is_gguf(path) and of_file is not None:
        return _given(of_file)
    if is_gguf(path):
        from specgate.gguf.vocabulary import tokenizer_of

        return tokenizer_of(read_gguf(path))
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).exists() for name in TOKENIZER_FILES):
        return None
    try:
        return _read_general(path) if _is_general(folder) else _read_any(path)
    # What a broken file makes transformers and its parsers raise is not of one kind.
    except Exception as error:
        raise ModelLoadError.of(error, f"the tokenizer of {path}") from error


def is_path(name: str) -> bool:
    """Return whether a model's name can only be that of a folder here, and no hub id."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _given(name: str) -> "PreTrainedTokenizerBase":
    if is_path(name) and not Path(name).is_dir():
        raise ModelLoadError(f"there is no folder {name!r}, whose tokenizer was asked for")
    found = load_tokenizer(name)
    if found is None:
        raise ModelLoadError(f"{name} has no tokenizer")
    return found


def _is_general(folder: Path) -> bool:
    """Return whether a folder names the class that reads any tokenizer.json, as transformers writes it since 5.0."""
    file = folder / "tokenizer_config.json"
    told = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return told.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in told


def _read_general(path: str) -> "PreTrainedTokenizerBase":
    # To choose a class takes the configurations of all models, and those import torch: two seconds, and 250 MB.
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(path)
    return tokenizer


def _read_any(path: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    return tokenizer


def vocabulary_size(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the bound of its token ids. Ids may have holes, so a count of tokens is not enough."""
    return max(tokenizer.get_vocab().values()) + 1


def fingerprint(tokenizer: "PreTrainedTokenizerBase") -> dict[str, str]:
    """Return one SHA-256, in hexadecimal, for each component; for a tokenizer without a backend the vocabulary's alone.

    What does not touch which text has which ids, such as padding, chat templates and flags of added tokens, is
    left out.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {"vocabulary": _digest(_by_id(tokenizer.get_vocab()))}
    serialized = json.loads(backend.to_str())
    model = serialized["model"]
    parts = {
        "vocabulary": _vocabulary(model.get("vocab") or {}),
        "merges": [_pair(merge) for merge in model.get("merges") or ()],
        "normalizer": serialized.get("normalizer"),
        "pre_tokenizer": serialized.get("pre_tokenizer"),
        "added_tokens": _by_id({token["content"]: token["id"] for token in serialized.get("added_tokens") or ()}),
    }
    return {name: _digest(parts[name]) for name in COMPONENTS}


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return the name of the first component that differs, None where all agree or one side knows nothing.

    A component that only one side names, as with a tokenizer without a backend, is not compared.
    """
    shared = [name for name in (*COMPONENTS, *sorted(one)) if name in one and name in other]
    return next((name for name in shared if one[name] != other[name]), None)


def _vocabulary(vocab: Any) -> list[Any]:
    # Unigram models list [token, score] in the order of their ids; the rest map a token to its id.
    return _by_id(vocab) if isinstance(vocab, dict) else list(vocab)


def _by_id(ids: Mapping[str, int]) -> list[list[Any]]:
    return sorted([token_id, token] for token, token_id in ids.items())


def _pair(merge: str | list[str]) -> list[str]:
    # Files of older libraries write a merge as one string.
    return merge.split(" ", 1) if isinstance(merge, str) else merge


def _digest(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, ensure_ascii=True, sort_keys=True).encode()).hexdigest()
