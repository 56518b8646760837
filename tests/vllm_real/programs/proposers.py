"""Proposers that only these tests use; vLLM imports them by name."""

from typing import Any

import specgate_vllm


class Empty:
    """Drafts nothing: what the hook itself costs."""

    def __init__(self, vllm_config: Any) -> None: ...

    def load_model(self, *_: Any, **__: Any) -> None: ...

    def propose(self, sampled_token_ids: Any, *_: Any, **__: Any) -> list[list[int]]:
        """Return nothing for each row."""
        return [[] for _ in sampled_token_ids]


class Repaired(specgate_vllm.Proposer):
    """Ours, and vLLM 0.32's sampler on CPUs repaired.

    It leaves each draft row's temperature, top_k and top_p unset, and ends at top_k in a step without drafts.
    """

    def __init__(self, vllm_config: Any) -> None:
        import torch
        from vllm.v1.sample import rejection_sampler

        def expand(x: Any, ends: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
            counts = torch.diff(ends, prepend=ends.new_zeros(1))
            return torch.where(x == replace_from, torch.full_like(x, replace_to), x).repeat_interleave(counts)

        whole = rejection_sampler.apply_sampling_constraints

        def constrain(logits: Any, *arguments: Any) -> Any:
            return whole(logits, *arguments) if len(logits) else logits

        rejection_sampler.expand_batch_to_tokens = expand
        rejection_sampler.apply_sampling_constraints = constrain
        super().__init__(vllm_config)
