"""What the doctor knows of one model, from its folder or from the service that has loaded it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Self

from specgate.errors import ModelLoadError
from specgate.gguf.configuration import configuration
from specgate.gguf.file import is_gguf, read_gguf
from specgate.model_config import context_length, ends_of
from specgate.tokenizer import fingerprint, load_tokenizer, vocabulary_size
from specgate.types import ModelInfo
from specgate.weights import Size, are_bfloat16, compressed_size, compression, tensors_of


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model. What could not be found out is None, or empty."""

    role: str
    context_length: int | None = None
    vocab_rows: int | None = None
    tokenizer_size: int | None = None
    tokenizer_problem: str | None = None
    tokenizer_fingerprint: Mapping[str, str] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    num_parameters: int | None = None
    are_weights_short: bool = False
    kept_bytes: int | None = None
    """What weights in codes take where they stay as they are stored."""
    kv_numbers_per_token: int | None = None

    @classmethod
    def of_service(cls, role: str, info: ModelInfo) -> Self:
        """Return what a running service says of its model."""
        return cls(
            role=role,
            context_length=info.context_length,
            vocab_rows=info.vocab_size,
            tokenizer_fingerprint=info.tokenizer_fingerprint,
            eos_token_ids=info.eos_token_ids,
            num_parameters=info.num_parameters,
        )

    @classmethod
    def of_folder(cls, role: str, folder: Path, config: Any, tokenizer_of_file: str | None = None) -> Self:
        """Return what the files say; ``config`` is the model's ``PretrainedConfig``. See ``load_tokenizer``."""
        text = config.get_text_config()
        tokens, digests, problem = _tokenizer(folder, tokenizer_of_file)
        size = _size_in_codes(str(folder))
        return cls(
            role=role,
            context_length=context_length(config),
            vocab_rows=getattr(text, "vocab_size", None),
            tokenizer_size=tokens,
            tokenizer_problem=problem,
            tokenizer_fingerprint=digests,
            eos_token_ids=ends_of(_generation_ends(folder), config),
            num_parameters=size.num_parameters if size else count_parameters(folder),
            are_weights_short=size is None and _are_short(folder),
            kept_bytes=size.kept_bytes if size else None,
            kv_numbers_per_token=_kv_numbers(text),
        )


def read_config(folder: Path) -> Any:
    """Return the configuration of the model in a folder or a GGUF file, as transformers understands it.

    Raises:
        ModelLoadError: there is none, or it is not known.
    """
    if is_gguf(str(folder)):
        return configuration(read_gguf(str(folder)))
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    # What a broken file makes transformers raise is not of one kind.
    except Exception as error:
        raise ModelLoadError.of(error) from error


def count_parameters(folder: Path) -> int | None:
    """Return how many numbers the safetensors files hold, from their headers alone; None without such files."""
    files = sorted(folder.glob("*.safetensors"))
    try:
        return sum(prod(tensor["shape"]) for file in files for tensor in tensors_of(file).values()) if files else None
    except Exception:
        return None


def _size_in_codes(name: str) -> Size | None:
    if is_gguf(name):
        file = read_gguf(name)
        return Size(file.num_parameters, file.kept_bytes)
    try:
        return compressed_size(name, told) if (told := compression(name)) else None
    # What a broken file makes the parsers raise is not of one kind.
    except Exception:
        return None


def _are_short(folder: Path) -> bool:
    try:
        return are_bfloat16(str(folder))
    except Exception:
        return False


def _tokenizer(folder: Path, of_file: str | None) -> tuple[int | None, dict[str, str], str | None]:
    """Return its size, its fingerprint, and what is wrong with it."""
    try:
        tokenizer = load_tokenizer(str(folder), of_file)
    except ModelLoadError as error:
        return None, {}, str(error)
    return (None, {}, None) if tokenizer is None else (vocabulary_size(tokenizer), fingerprint(tokenizer), None)


def _generation_ends(folder: Path) -> Any:
    try:
        return json.loads((folder / "generation_config.json").read_text("utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return None


def _kv_numbers(text_config: Any) -> int | None:
    """Return how many numbers one token's keys and values are, over all layers."""
    layers = getattr(text_config, "num_hidden_layers", None)
    heads = getattr(text_config, "num_attention_heads", None)
    width = getattr(text_config, "hidden_size", None)
    if not (layers and heads and width):
        return None
    kv_heads = getattr(text_config, "num_key_value_heads", None) or heads
    head_dim = getattr(text_config, "head_dim", None) or width // heads
    return int(2 * layers * kv_heads * head_dim)
