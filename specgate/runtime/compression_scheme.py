"""How compressed-tensors says that it wrote a folder: every field is checked, and what is not read is named."""

from typing import Any, NamedTuple

from specgate.errors import ModelLoadError

FLOATS = ("F32", "F16", "BF16")
Parts = dict[str, tuple[tuple[str, ...], tuple[int, ...]]]
"""The dtypes that a tensor may have, and its shape, by its name."""
Fields = dict[str, tuple[Any, ...]]
"""The values that a field may have; none listed: it does not change what the weights are."""
_FORMATS = ("pack-quantized", "int-quantized")
_CONFIG: Fields = {
    "quant_method": ("compressed-tensors",), "format": _FORMATS, "quantization_status": (None, "compressed", "frozen"),
    "kv_cache_scheme": (None,), "transform_config": (None, {}), "moe_sparsity_config": (None,), "sparsity_config": (),
    "config_groups": (), "ignore": (), "global_compression_ratio": (), "version": (), "run_compressed": (),
}  # fmt: skip
_GROUP: Fields = {
    "weights": (), "targets": (), "format": (None, *_FORMATS), "input_activations": (None,),
    "output_activations": (None,),
}  # fmt: skip
_WEIGHTS: Fields = {
    "num_bits": (4, 8), "type": ("int",), "symmetric": (True, False), "strategy": ("tensor", "channel", "group"),
    "dynamic": (None, False), "block_structure": (None,), "group_size": (), "observer": (), "observer_kwargs": (),
    # What was ordered by activations while it was rounded is stored in its own order, but for "group" ("dynamic").
    "actorder": (None, False, "weight", "static"), "scale_dtype": (), "zp_dtype": (),
}  # fmt: skip


class Scheme(NamedTuple):
    """How all weights that are in codes are stored; ``group_size`` is the inputs of a scale, 0 is all of a row's."""

    name: str
    is_packed: bool
    bits: int
    symmetric: bool
    strategy: str
    group_size: int

    def codes_of(self, path: str) -> str:
        """Return the name of the tensor with the codes of the weight ``path``."""
        return f"{path}_packed" if self.is_packed else path

    def num_groups(self, num_in: int) -> int:
        """Return how many scales a row of so many inputs has."""
        return num_in // self.group_size if self.group_size else 1

    def parts(self, path: str, shape: tuple[int, ...]) -> Parts:
        """Return the tensors that a weight [out, in] consists of: their dtypes and shapes, by name.

        Raises:
            ModelLoadError: the groups do not fill its rows.
        """
        num_out, num_in = shape
        if self.group_size and num_in % self.group_size:
            raise ModelLoadError(f"{self.name}: group_size {self.group_size} does not divide {path}'s {num_in} inputs")
        groups = self.num_groups(num_in)
        scales = (1,) if self.strategy == "tensor" else (num_out, groups)
        found: Parts = {f"{path}_scale": (FLOATS, scales)}
        if self.is_packed:
            found[f"{path}_packed"] = ("I32",), (num_out, -(-num_in * self.bits // 32))
            found[f"{path}_shape"] = ("I64", "I32"), (2,)
        else:
            found[path] = ("I8",), shape
        if not self.symmetric and self.is_packed and self.strategy != "tensor":
            found[f"{path}_zero_point"] = ("I32",), (-(-num_out * self.bits // 32), groups)
        elif not self.symmetric:
            found[f"{path}_zero_point"] = ("I8",), scales
        return found


def read_scheme(name: str, told: Any) -> Scheme:
    """Return how the weights of the folder ``name`` are stored; ``told`` is its ``quantization_config``.

    Raises:
        ModelLoadError: names the field, its value and what is read.
    """
    _check(name, "quantization_config", told, _CONFIG)
    sparsity = told.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise ModelLoadError(f"{name}: sparsity_config is {_short(sparsity)}; read is none, or the format 'dense'")
    groups = told.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise ModelLoadError(f"{name}: config_groups is {_short(groups)}; read is a single group")
    (group,) = groups.values()
    _check(name, "config_groups", group, _GROUP)
    if group.get("format") not in (None, told["format"]):
        raise ModelLoadError(f"{name}: format is {told['format']!r}, and that of its group {group['format']!r}")
    weights = group.get("weights")
    _check(name, "weights", weights, _WEIGHTS)
    size, in_groups = weights.get("group_size"), weights["strategy"] == "group"
    if (type(size) is not int or size < 1) if in_groups else size not in (None, -1):
        raise ModelLoadError(f"{name}: group_size is {_short(size)} with the strategy {weights['strategy']!r}")
    if told["format"] == "int-quantized" and weights["num_bits"] != 8:
        raise ModelLoadError(f"{name}: num_bits is {weights['num_bits']} in the format 'int-quantized'; read is 8")
    is_packed = told["format"] == "pack-quantized"
    bits, symmetric, strategy = (weights[field] for field in ("num_bits", "symmetric", "strategy"))
    return Scheme(name, is_packed, bits, symmetric, strategy, size if in_groups else 0)


def _check(name: str, where: str, told: Any, fields: Fields) -> None:
    if not isinstance(told, dict):
        raise ModelLoadError(f"{name}: {where} is {_short(told)}; read is an object with fields")
    for field, value in told.items():
        if field not in fields:
            raise ModelLoadError(f"{name}: {where} has the field {field!r}, {_short(value)}, which is not read")
    for field, values in fields.items():
        value = told.get(field)
        if values and not any(type(value) is type(one) and value == one for one in values):
            read = ", ".join(repr(one) for one in values)
            raise ModelLoadError(f"{name}: {field} is {_short(value)}; read is {read}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
