"""specgate's drafter for stock vLLM: its ``custom_class`` is ``specgate_vllm.Proposer``. See docs/vllm.md."""

from specgate_vllm.proposer import Proposer

__all__ = ["Proposer"]
