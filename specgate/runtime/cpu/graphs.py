"""A model's forward on the CPU without its Python: recorded once, replayed for every batch of a few rows.

With few rows a third of a forward is the interpreter's: the bundled target's takes 8.6 ms for a row on a core of an AMD
EPYC, and 6.3 without, the draft's 1.27 and 0.67. The operations are recorded by ``torch.jit.trace``, and torch replays
them with no lock held but in attention, which stays ours. (torch calls that deprecated in favour of compilers, which
take minutes for what takes a second here. Where it is gone, all runs as if it had never been there.)

A lone row has a graph of its own; all other numbers of rows share one. A model that looks at its numbers to decide what
to do is not recorded, and no graph is used that was not compared, bit for bit.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.attention.interface import Batch, Forward, Inputs, LayerCall
from specgate.runtime.warnings_lock import WARNINGS_LOCK

MOST_ROWS = 64
"""With more the interpreter's share is small."""
FIRST_REPLAYS = 3
"""torch looks at the first of them, and makes of a graph what it replays from then on."""

Replay = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


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
        return batch.attend(LayerCall(layer, scale, window, softcap), query, key, value)
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

    def attend(self, call: LayerCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = torch.ops.specgate.attend(query, key, value, self._caller, *call)
        return attended


class CpuGraphs:
    """The recorded forwards of one model, which ``call`` runs."""

    def __init__(self, call: Forward) -> None:
        self._call = call
        self._caller = next(_callers)
        self._replays: dict[bool, Replay] = {}
        """By whether the row is a lone one."""

    def __bool__(self) -> bool:
        """Return whether anything is recorded."""
        return bool(self._replays)

    def drop(self) -> None:
        """Forget all that was recorded."""
        self._replays = {}

    def fit(self, inputs: Inputs) -> bool:
        """Return whether there is a graph for these rows, all of whose logits are wanted."""
        num_rows = len(inputs.token_ids)
        return inputs.keep is None and num_rows <= MOST_ROWS and (num_rows == 1) in self._replays

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Return the logits of all rows, [rows, vocabulary], in the model's dtype."""
        logits: torch.Tensor = self._with(inputs, self._replays[len(inputs.token_ids) == 1])
        return logits

    def record(self, inputs: Inputs) -> None:
        """Record the forward of a lone row, or of several.

        Raises:
            UnsupportedArchitecture: what the model does depends on numbers that it computes.
        """

        def forward(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return self._call(Inputs(token_ids, positions, None, _Recorded(self._caller)))

        from torch.jit import TracerWarning  # type: ignore[attr-defined]  # here, since torch may drop it

        with WARNINGS_LOCK, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            replay: Replay = self._with(inputs, lambda *rows: torch.jit.trace(forward, rows, check_trace=False))
        if looked := [one for one in caught if issubclass(one.category, TracerWarning)]:
            raise UnsupportedArchitecture(f"it looks at its numbers: {str(looked[0].message).partition('.')[0]}")
        for _ in range(FIRST_REPLAYS):
            self._with(inputs, replay)
        self._replays[len(inputs.token_ids) == 1] = replay

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
