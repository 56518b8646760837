"""A model's forward on the CPU without its Python: recorded once, replayed for every batch of a few rows.

With few rows a third of a forward is the interpreter's: the bundled target's takes 8.6 ms for a row on a core of an AMD
EPYC, and 6.3 without, the draft's 1.27 and 0.67. The operations are recorded by ``torch.jit.trace``, and torch replays
them with no lock held but in attention, which stays ours. (torch calls that deprecated in favour of compilers, which
take minutes for what takes a second here. Where it is gone, all runs as if it had never been there.)

Numbers of rows that are multiplied alike share a graph; a lone row has its own. A model that looks at its numbers to
decide what to do is not recorded, and no graph is used that was not compared, bit for bit.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.attention.interface import Batch, Forward, Inputs
from specgate.runtime.cpu.linear import Product, Products
from specgate.runtime.warnings_lock import WARNINGS_LOCK

MOST_ROWS = 64
"""With more the interpreter's share is small."""
FIRST_REPLAYS = 3
"""torch looks at the first of them, and makes of a graph what it replays from then on."""

Replay = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class GraphKind(NamedTuple):
    """What numbers of rows have in common that share a graph."""

    product: Product | None
    is_lone: bool


_callers = itertools.count()
_running: dict[int, Batch] = {}
"""By caller: the batch of the forward that it replays now."""
_raised: dict[int, Exception] = {}
"""By caller: what attention raised in it, of which torch's interpreter keeps the text alone."""


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    caller: int,
    layer: int,
    scale: float | None,
    window: int,
    softcap: float | None,
) -> torch.Tensor:
    batch = _running[caller]
    batch.num_calls += 1
    batch.num_windows += bool(window)
    try:
        return batch.attend(layer, query, key, value, scale=scale, window=window, softcap=softcap)
    except Exception as error:
        _raised[caller] = error
        raise


_library = torch.library.Library("specgate", "DEF")
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, int caller, int layer, float? scale, int window, float? softcap)"
    " -> Tensor"
)
_library.impl("attend", _attend, "CPU")


class _Recorded:
    """The batch that a model sees while it is recorded, see ``attention.Batch``: asks the one that runs later."""

    def __init__(self, caller: int) -> None:
        self._caller = caller
        self.num_calls = self.num_windows = 0

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float | None,
        window: int,
        softcap: float | None,
    ) -> torch.Tensor:
        attended: torch.Tensor = torch.ops.specgate.attend(
            query, key, value, self._caller, layer, scale, window, softcap
        )
        return attended


class CpuGraphs:
    """The recorded forwards of one model.

    Args:
        products: by which the model's layers multiply.
    """

    def __init__(self, call: Forward, products: Products) -> None:
        self._call = call
        self._products = products
        self._caller = next(_callers)
        self._replays: dict[GraphKind, Replay] = {}

    def __bool__(self) -> bool:
        """Return whether anything is recorded."""
        return bool(self._replays)

    def drop(self) -> None:
        """Forget all that was recorded."""
        self._replays = {}

    def kind(self, num_rows: int) -> GraphKind:
        """Return what numbers of rows must have in common to share a graph."""
        return GraphKind(self._products.of(num_rows), num_rows == 1)

    def fit(self, inputs: Inputs) -> bool:
        """Return whether there is a graph for these rows, all of whose logits are wanted."""
        num_rows = len(inputs.token_ids)
        is_few = inputs.keep is None and num_rows <= MOST_ROWS
        return bool(self._replays) and is_few and self.kind(num_rows) in self._replays

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Return the logits of all rows, [rows, vocabulary], in the model's dtype."""
        logits: torch.Tensor = self._with(inputs, self._replays[self.kind(len(inputs.token_ids))])
        return logits

    def record(self, inputs: Inputs) -> None:
        """Record the forward of these rows, and so that of all that are multiplied alike.

        Raises:
            UnsupportedArchitecture: what the model does depends on numbers that it computes.
        """

        def forward(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return self._call(Inputs(token_ids, positions, None, _Recorded(self._caller)))

        from torch.jit import TracerWarning  # type: ignore[attr-defined]  # here, since torch may drop it

        num_rows = len(inputs.token_ids)
        with WARNINGS_LOCK, warnings.catch_warnings(record=True) as told, self._products.recorded_for(num_rows):
            warnings.simplefilter("always")
            replay: Replay = self._with(inputs, lambda *rows: torch.jit.trace(forward, rows, check_trace=False))
        if looked := [one for one in told if issubclass(one.category, TracerWarning)]:
            raise UnsupportedArchitecture(f"it looks at its numbers: {str(looked[0].message).partition('.')[0]}")
        for _ in range(FIRST_REPLAYS):
            self._with(inputs, replay)
        self._replays[self.kind(num_rows)] = replay

    def _with(self, inputs: Inputs, function: Callable[[torch.Tensor, torch.Tensor], Any]) -> Any:
        _running[self._caller] = inputs.ragged
        try:
            return function(inputs.token_ids, inputs.positions)
        except RuntimeError:
            if self._caller in _raised:
                raise _raised[self._caller] from None
            raise
        finally:
            del _running[self._caller]
            _raised.pop(self._caller, None)
