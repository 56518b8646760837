"""What is made before anybody waits for it."""

import pytest
import torch
from torch import nn

from specgate.runtime.cpu.warm_up import MOST_ROWS, warm_up


class Seen(nn.Linear):
    """Told apart from a plain layer by its type."""


def spy(layer: nn.Linear, met: list[tuple[int, int]]) -> nn.Linear:
    """Let a layer note how many rows it meets, and how many columns."""
    layer.register_forward_pre_hook(
        lambda _, inputs: met.append((inputs[0].numel() // layer.in_features, layer.in_features))
    )
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_shape_meets_every_number_of_rows_once(dtype: torch.dtype) -> None:
    met: list[tuple[int, int]] = []
    model = nn.ModuleList(spy(nn.Linear(width, 8, dtype=dtype), met) for width in (4, 4, 16))
    told: list[tuple[str, int, int]] = []
    warm_up(model, lambda *stage: told.append(stage))
    assert sorted(met) == sorted((rows, width) for rows in range(1, MOST_ROWS + 1) for width in (4, 16))
    assert told == [("warm-up", 0, 1), ("warm-up", 1, 1)]


def test_layers_with_and_without_a_bias_are_two_kinds() -> None:
    met: list[tuple[int, int]] = []
    warm_up(nn.ModuleList(spy(nn.Linear(4, 8, bias=bias), met) for bias in (True, False)), lambda *_: None)
    assert len(met) == 2 * MOST_ROWS


def test_what_is_no_plain_layer_or_not_on_a_processor_is_left_alone() -> None:
    met: list[tuple[int, int]] = []
    special, elsewhere = spy(Seen(4, 8), met), spy(nn.Linear(4, 8, device="meta"), met)
    for layer in (special, elsewhere):
        warm_up(nn.ModuleList([layer]), lambda *_: None)
    assert met == []


def test_it_ends_when_its_time_is_over() -> None:
    met: list[tuple[int, int]] = []
    warm_up(nn.ModuleList([spy(nn.Linear(4, 8), met)]), lambda *_: None, budget_s=0.0)
    assert met == []
