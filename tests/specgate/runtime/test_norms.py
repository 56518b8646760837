"""A norm becomes torch's own where it computes the same, and only there."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specgate.runtime.norms import fuse_norms

WIDTH = 24


class NotANorm(nn.Module):
    """Has what a norm has, and wants more than rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.eps = 1e-6

    def forward(self, rows: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return rows * gate


class OtherEpsilon(LlamaRMSNorm):
    """Adds its epsilon twice."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        out: torch.Tensor = self.weight * hidden_states * torch.rsqrt(variance + 2 * self.variance_epsilon)
        return out


def random(norm: Any) -> Any:
    nn.init.normal_(norm.weight)
    return norm.requires_grad_(False)


class Gated(LlamaRMSNorm):
    """The same norm, unless it is given a gate."""

    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = super().forward(hidden_states)
        return out if gate is None else out * gate


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, nn.RMSNorm])
@pytest.mark.parametrize("shape", [(1, 1, WIDTH), (1, 5, WIDTH), (1, 5, 3, WIDTH)])
def test_a_norm_that_computes_the_same_is_torchs(kind: Any, eps: float, shape: tuple[int, ...]) -> None:
    norm = random(kind(WIDTH, eps=eps))
    model = nn.Sequential(norm)
    rows = 3 * torch.randn(shape)
    expected = model(rows)
    fuse_norms(model)
    assert "forward" in vars(norm)
    torch.testing.assert_close(model(rows), expected)


@pytest.mark.parametrize(
    "module",
    [
        GemmaRMSNorm(WIDTH),
        OtherEpsilon(WIDTH),
        Gated(WIDTH),
        nn.LayerNorm(WIDTH),
        nn.LayerNorm(WIDTH, bias=False),
        NotANorm(),
    ],
)
def test_what_computes_something_else_is_left_alone(module: nn.Module) -> None:
    fuse_norms(nn.Sequential(random(module)))
    assert "forward" not in vars(module)


def test_other_dtypes_are_left_alone_on_the_cpu() -> None:
    norm = LlamaRMSNorm(WIDTH).bfloat16()
    fuse_norms(nn.Sequential(norm))
    assert "forward" not in vars(norm)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu_a_norm_is_torchs_in_every_dtype_and_gemmas_is_not(dtype: torch.dtype) -> None:
    norm, other = (random(kind(WIDTH)).to("cuda", dtype) for kind in (LlamaRMSNorm, GemmaRMSNorm))
    fuse_norms(nn.Sequential(norm, other))
    assert "forward" in vars(norm)
    assert "forward" not in vars(other)
