"""Loading a causal language model: safetensors or GGUF only, no code from the model's folder, checked fields."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging as transformers_logging

from specgate.errors import InvalidArgument, ModelLoadError, SpecgateError
from specgate.gguf.configuration import configuration
from specgate.gguf.file import is_gguf, read_gguf
from specgate.model_config import context_length, ends_of
from specgate.runtime.compressed_tensors import load_compressed
from specgate.runtime.gguf_model import load_gguf_model
from specgate.runtime.layer_skip import LayerSkip, layers_without_attention, load_without, read_skip
from specgate.runtime.short_head import cut_head, read_short_head
from specgate.runtime.stored_weights import keep_short
from specgate.runtime.translation import Translation, translate, translation
from specgate.token_bytes import token_bytes
from specgate.tokenizer import fingerprint, first_difference, load_tokenizer, vocabulary_size
from specgate.types import dtype_on
from specgate.weights import are_bfloat16, is_quantised

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how much of it is done and how much there is."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, and what its files say of it.

    ``vocab_size`` leaves padding rows out; ``without_attention`` are the layers whose attention was left out.
    ``tokenizer_name`` is the model that has the token ids of the fingerprint: the target where a draft has a tokenizer
    of its own. Then ``shared`` is how much of a text's tokens it has, and ``tokenizers`` are the draft's and the
    target's where that was too little to give its rows the target's names.
    """

    name: str
    model: Any
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    tokenizer_fingerprint: Mapping[str, str] = field(default_factory=dict)
    tokenizer_of_file: str | None = None
    tokenizer_name: str = ""
    why_target_unread: str = ""
    without_attention: frozenset[int] = frozenset()
    shared: float | None = None
    tokenizers: tuple[Any, Any] | None = None

    @property
    def num_token_ids(self) -> int:
        """The bound of the ids that sessions speak of."""
        return self.vocab_size if self.tokenizers is None else vocabulary_size(self.tokenizers[1])

    @property
    def session_length(self) -> int:
        """Tokens of a session at the most; of the target's, where a draft has more of its own for a text."""
        if self.tokenizers is None:
            return self.context_length
        own, theirs = (sum(map(len, one.values())) / len(one) for one in map(token_bytes, self.tokenizers))
        return max(2, int(self.context_length * min(own / theirs, 1.0)))

    @property
    def architecture(self) -> str:
        return type(self.model).__name__

    @property
    def sliding_window(self) -> int:
        return int(getattr(self.model.config.get_text_config(), "sliding_window", None) or 0)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the torch dtype that ``name`` means on the device. Raises InvalidArgument for one that is not served."""
    dtype: torch.dtype = getattr(torch, dtype_on(name, device.type))
    return dtype


def load(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    skip: str | None = None,
    *,
    tokenizer_of_file: str | None = None,
    keeps_stored: bool = False,
    drafts: bool = False,
    target_tokenizer: str | None = None,
) -> LoadedModel:
    """Load ``name``, a folder, a hub id or a GGUF file, with its own eager attention.

    Args:
        skip: file of the blocks to leave out, see ``layer_skip``.
        tokenizer_of_file: see ``load_tokenizer``.
        keeps_stored: keep bfloat16 weights and codes as they are under float32: the same numbers, in less memory.
        drafts: the model drafts, so its folder may cut its head, see ``short_head``.
        target_tokenizer: a model whose token ids it is to have where its own are others, see ``translation``.

    Raises:
        TokenizerMismatch: a vocabulary's tokens cannot be read as bytes.
        InvalidArgument: the file of blocks is not for this model, or cannot be; that of the head is no list of tokens.
        ModelLoadError: not found, neither safetensors nor GGUF, or an architecture that needs code of its own.
    """
    progress("config", 0, 1)
    if skip is not None and is_quantised(name):
        raise InvalidArgument("skip", "layers of a GGUF file or of a quantised folder cannot be left out")
    config = _from_files(lambda: read_config(name), name)
    blocks = _from_files(lambda: read_skip(skip, name), name) if skip is not None else None
    width = int(config.get_text_config().vocab_size)
    head = read_short_head(name, width) if drafts else None
    tokenizer = _from_files(lambda: _read_tokenizer(name, tokenizer_of_file, width), name)
    theirs, by, digests, why_unread = _translation(tokenizer, target_tokenizer, width)
    progress("weights", 0, 1)
    model = _from_files(lambda: _stored_or_wide(name, config, dtype, blocks, keeps_stored), name)
    num_parameters = int(model.num_parameters())
    ends = _change_rows(model, by, head)
    model = model.to(device).eval().requires_grad_(False)
    progress("weights", 1, 1)
    own_name = str(Path(name).resolve()) if Path(name).exists() else name
    num_rows, of_rows = (width, tokenizer) if by is None else (by.num_tokens, theirs)
    return LoadedModel(
        name=own_name,
        model=model,
        dtype=dtype,
        device=device,
        vocab_size=min(num_rows, vocabulary_size(of_rows)) if of_rows else num_rows,
        context_length=context_length(config),
        eos_token_ids=ends,
        num_parameters=num_parameters,
        tokenizer_fingerprint=digests,
        tokenizer_of_file=tokenizer_of_file if theirs is None else None,
        why_target_unread=why_unread,
        tokenizer_name=own_name if theirs is None else target_tokenizer or "",
        without_attention=layers_without_attention(model) if blocks else frozenset(),
        shared=None if by is None else by.share,
        tokenizers=None if theirs is None or by is not None else (tokenizer, theirs),
    )


def _read_tokenizer(name: str, of_file: str | None, num_rows: int) -> Any:
    tokenizer = load_tokenizer(name, of_file)
    if tokenizer and is_gguf(name) and vocabulary_size(tokenizer) > num_rows:
        raise ModelLoadError(f"{name}: its tokenizer has {vocabulary_size(tokenizer)} tokens, and the model {num_rows}")
    return tokenizer


def _change_rows(model: Any, by: Translation | None, head: list[int] | None) -> tuple[int, ...]:
    """Give a model the target's rows, or cut its head; return the tokens that end a text then."""
    ends = eos_token_ids(model)
    if by is not None:
        translate(model, by, head)
        return by.named(ends)
    if head is not None:
        cut_head(model, head)
    return ends


class _TokenIds(NamedTuple):
    """Whose token ids a model has.

    Attributes:
        theirs: the target's tokenizer, where the model's own is another one.
        by: how its tokens are the model's; None: they are not, or too few.
        digests: the fingerprint of the ids that sessions speak of.
        why_unread: why the target's tokenizer cannot be read.
    """

    theirs: Any
    by: Translation | None
    digests: Mapping[str, str]
    why_unread: str = ""


def _translation(own: Any, target_tokenizer: str | None, num_rows: int) -> _TokenIds:
    digests = fingerprint(own) if own else {}
    try:
        theirs = load_tokenizer(target_tokenizer) if target_tokenizer and own else None
    except ModelLoadError as error:
        return _TokenIds(None, None, digests, str(error))
    if theirs is None or first_difference(digests, wanted := fingerprint(theirs)) is None:
        return _TokenIds(None, None, digests)
    return _TokenIds(theirs, translation(own, theirs, num_rows), wanted)


def read_config(name: str) -> PretrainedConfig:
    """Return the configuration of a model. Raises ModelLoadError of a GGUF file, and what transformers does."""
    if is_gguf(name):
        config: PretrainedConfig = configuration(read_gguf(name))
        return config
    return AutoConfig.from_pretrained(name, trust_remote_code=False)


def _from_files(read: Callable[[], Any], name: str) -> Any:
    """Run ``read``; what transformers raises over bad files becomes one error that names the model."""
    try:
        return read()
    except SpecgateError:
        raise
    # What a broken file makes transformers and its parsers raise is not of one kind.
    except Exception as error:
        raise ModelLoadError.of(error, name) from error


def _stored_or_wide(
    name: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    blocks: LayerSkip | None,
    keeps_stored: bool,
) -> Any:
    keeps_codes = keeps_stored and dtype is torch.float32
    if is_quantised(name):
        if is_gguf(name):
            return load_gguf_model(read_gguf(name), config, dtype, keeps_stored=keeps_codes)
        return load_compressed(name, config, dtype, keeps_stored=keeps_codes)
    if keeps_codes and are_bfloat16(name):
        model = _load_weights(name, config, torch.bfloat16, blocks)
        if keep_short(model):
            return model
        del model
    return _load_weights(name, config, dtype, blocks)


def _load_weights(name: str, config: PretrainedConfig, dtype: torch.dtype, blocks: LayerSkip | None) -> Any:
    # Our own stages show the progress; a second bar would break machine-readable output.
    transformers_logging.disable_progress_bar()
    options: dict[str, Any] = {"dtype": dtype, "use_safetensors": True, "attn_implementation": "eager"}
    if blocks is not None:
        model, info = load_without(name, config, blocks, **options)
    else:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, config=config, trust_remote_code=False, output_loading_info=True, **options
        )
        model, info = loaded
    # transformers draws what a file lacks at random, and goes on.
    if missing := sorted(info["missing_keys"]):
        raise ModelLoadError(f"{name}: {len(missing)} of its weights are missing; the first is {missing[0]}")
    return model


def eos_token_ids(model: Any) -> tuple[int, ...]:
    """Return the ids that end a text of a loaded model."""
    generation = getattr(model, "generation_config", None)
    return ends_of(getattr(generation, "eos_token_id", None), model.config)
