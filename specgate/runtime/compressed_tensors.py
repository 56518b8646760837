"""A model from a folder of compressed-tensors: transformers' own module, its int8 and int4 weights as they are stored.

A code stands for (code - zero point) * scale, in float32. Only weights are in codes.
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as transformers_logging

from specgate.errors import ModelLoadError
from specgate.runtime.compression_scheme import FLOATS, Parts, Scheme, read_scheme
from specgate.runtime.stored_weights import Codes, Weight, is_plain, keep, stand_in, tie, whole
from specgate.weights import code_block, file_of, kept_bits, tensors_of, weight_files

_MIDDLE = 8
"""The code of 4 bits that stands for 0 where there are no zero points."""


class _Tensor(NamedTuple):
    """Where a tensor is, and what the header says of it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def load_compressed(name: str, config: Any, dtype: torch.dtype, *, keeps_stored: bool) -> Any:
    """Return a causal language model on the CPU.

    Args:
        config: the folder's own, with its ``quantization_config``.
        dtype: of the weights, or with ``keeps_stored`` of the arithmetic, which is float32 then.

    Raises:
        ModelLoadError: a field or a tensor is not as it is read, a tensor is missing or has no place; says which.
    """
    scheme = read_scheme(name, config.quantization_config)
    plain = deepcopy(config)
    del plain.quantization_config
    tensors = _Tensors(name, scheme)
    if (num_layers := getattr(plain.get_text_config(), "num_hidden_layers", 0)) > tensors.num:
        raise ModelLoadError(f"{name}: there are no tensors for {num_layers} layers")
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(plain, dtype=dtype, attn_implementation="eager")
    tensors.check(empty)
    kept: dict[str, Weight] = {}
    state: dict[str, torch.Tensor] = {}
    for path, own in _own_tensors(empty):
        module, _, part = path.rpartition(".")
        may_keep = keeps_stored and part == "weight" and is_plain(empty.get_submodule(module))
        weight = tensors.read(path, tuple(own.shape), may_keep)
        if may_keep and weight.dtype is not torch.float32:
            kept[module], state[path] = weight, stand_in(weight)
        else:
            state[path] = whole(weight).to(dtype)
    return _built(name, type(empty), plain, state, kept, dtype)


def _built(name: str, architecture: Any, config: Any, state: Any, kept: dict[str, Weight], dtype: torch.dtype) -> Any:
    # Our own stages show the progress; a second bar would break machine-readable output.
    transformers_logging.disable_progress_bar()
    model = architecture.from_pretrained(
        None, config=config, state_dict=state, dtype=dtype, attn_implementation="eager"
    )
    for path, weight in kept.items():
        keep(model.get_submodule(path), weight, stand_in(weight))
    if config.tie_word_embeddings:
        tie(model)
    if file_of(name, "generation_config.json"):
        model.generation_config = GenerationConfig.from_pretrained(name)
    return model


def _own_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a file must have: weights that are tied once, and buffers that are stored."""
    yield from model.named_parameters()
    stored = model.state_dict().keys()
    yield from ((path, buffer) for path, buffer in model.named_buffers() if path in stored)


class _Tensors:
    """All tensors of a folder, each read when it is asked for."""

    def __init__(self, name: str, scheme: Scheme) -> None:
        self._name, self._scheme = name, scheme
        self._open: dict[Path, Any] = {}
        self._found: dict[str, _Tensor] = {}
        for file in weight_files(name):
            for path, told in tensors_of(file).items():
                if path in self._found:
                    raise ModelLoadError(f"{name}: the tensor {path} is in two files")
                self._found[path] = _Tensor(file, told["dtype"], tuple(told["shape"]))
            self._open[file] = safe_open(file, framework="pt")

    @property
    def num(self) -> int:
        return len(self._found)

    def check(self, model: Any) -> None:
        """Compare the headers with a model on the meta device. Raises ModelLoadError: names what does not fit."""
        left = set(self._found)
        for path, own in _own_tensors(model):
            needed: Parts = {path: (FLOATS, tuple(own.shape))}
            if self._is_coded(path):
                if not is_plain(model.get_submodule(path.rpartition(".")[0])):
                    raise ModelLoadError(f"{self._name}: {path} is stored in codes, and is of no plain product")
                needed = self._scheme.parts(path, tuple(own.shape))
            for part, (dtypes, shape) in needed.items():
                self._check(part, dtypes, shape)
            if f"{path}_shape" in needed and tuple(self._get(f"{path}_shape").tolist()) != tuple(own.shape):
                raise ModelLoadError(f"{self._name}: {path}_shape is not {tuple(own.shape)}")
            left -= needed.keys()
        # Older folders have what is computed from the configuration.
        left = {path for path in left if not path.endswith(".rotary_emb.inv_freq")}
        if left:
            raise ModelLoadError(f"{self._name}: the tensor {min(left)} has no place in {type(model).__name__}")

    def _check(self, path: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        found = self._found.get(path)
        if found is None:
            raise ModelLoadError(f"{self._name}: there is no tensor for {path}")
        if found.dtype not in dtypes or found.shape != shape:
            needed = f"where {shape} in {' or '.join(dtypes)} is needed"
            raise ModelLoadError(f"{self._name}: the tensor {path} is {found.shape} in {found.dtype}, {needed}")

    def _is_coded(self, path: str) -> bool:
        marker = self._found.get(self._scheme.codes_of(path))
        return marker is not None and marker.dtype not in FLOATS

    def _get(self, path: str) -> Any:
        return self._open[self._found[path].file].get_tensor(path)

    def read(self, path: str, shape: tuple[int, ...], may_keep: bool) -> Weight:
        """Return a parameter: its codes where they may be kept, else float32 or bfloat16; float16 becomes float32."""
        if not self._is_coded(path):
            found = self._get(path)
            return found.float() if found.dtype is torch.float16 else found
        scheme, (num_out, num_in) = self._scheme, shape
        codes = self._get(scheme.codes_of(path))
        codes = _unpacked(codes, scheme.bits, num_in) if scheme.is_packed else codes
        scales = self._get(f"{path}_scale").float()
        if not scales.isfinite().all():
            raise ModelLoadError(f"{self._name}: the tensor {path}_scale has numbers that are none")
        scales = scales.view(-1, scheme.num_groups(num_in)).expand(num_out, -1)
        zeros = self._zeros(path, scales)
        block = code_block(num_in // scales.shape[1])
        bits = kept_bits(scheme.bits, block, scheme.symmetric, self._found[f"{path}_scale"].dtype) if may_keep else 32
        if (scheme.bits, bits) == (4, 8):
            codes, zeros = codes - _MIDDLE, None
        return _weight_of_codes(codes, scales, zeros, bits, block)

    def _zeros(self, path: str, scales: torch.Tensor) -> torch.Tensor | None:
        """Return the codes that stand for 0, float32 as ``scales``; None: it is 0."""
        bits = self._scheme.bits
        if self._scheme.symmetric:
            return torch.full_like(scales, _MIDDLE) if bits == 4 else None
        zeros = self._get(f"{path}_zero_point")
        if zeros.dtype is torch.int32:
            zeros = _unpacked(zeros.T.contiguous(), bits, len(scales)).T
        elif bits == 4:
            zeros = zeros.float() + _MIDDLE
        return zeros.float().reshape(-1, scales.shape[1]).expand(scales.shape)


def _unpacked(words: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """Return the codes [rows, width] of int32 words [rows, ...], int8: of 4 bits 0 to 15, of 8 bits with a sign."""
    # numpy's own loops: torch's threads take far longer to meet than such a tensor takes.
    parts = words.numpy().view(np.uint8)
    if bits == 8:
        return torch.from_numpy((parts ^ 128).view(np.int8)[:, :width])
    # Both halves of a byte at a time, the low one first.
    pairs = parts.astype(np.uint16)
    pairs |= pairs << 4
    pairs &= 0x0F0F
    return torch.from_numpy(pairs.view(np.int8)[:, :width])


def _weight_of_codes(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, block: int
) -> Weight:
    """Return the numbers (codes - zeros) * scales.

    Args:
        codes: int8 [out, in].
        scales, zeros: float32 [out, groups]; no zeros: all are 0.
        bits: how a code is kept, see ``specgate.weights.kept_bits``.
        block: inputs of a scale where codes are kept; it divides those of a group.

    Returns:
        Codes of 4 or 8 bits, or with 32 float32 [out, in].
    """
    groups = scales.shape[1]
    if bits == 32:
        grouped = codes.unflatten(-1, (groups, -1)).float()
        if zeros is not None:
            grouped -= zeros.unsqueeze(-1)
        grouped *= scales.unsqueeze(-1)
        return grouped.flatten(-2)
    repeats = codes.shape[1] // groups // block
    offsets = None if zeros is None else (-zeros * scales).repeat_interleave(repeats, 1)
    return Codes(codes, scales.repeat_interleave(repeats, 1), offsets, bits)
