"""Whether forwards of few rows have kernels of their own: where these are right, and not much slower."""

import importlib
import logging
from collections.abc import Callable, Sequence

from specgate.errors import reason_of
from specgate.runtime.attention.interface import Forward, wait_for
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.decoder.few_rows import FewRows
from specgate.runtime.cuda.graphs import FEW_ROWS, Bucket, Capturer
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.types import ForwardCost

MOST_SLOWER = 1.1
"""Texts that do not depend on drafts are worth a tenth of a forward's time."""
_TIMED_ROWS = 4
"""As a verification has, and as today's graphs fit without padding."""
Measure = Callable[[ModelRunner], Sequence[ForwardCost]]
_log = logging.getLogger(__name__)


def few_rows_of(runner: ModelRunner) -> FewRows | None:
    """Return what runs few rows by kernels of their own; None where there is none for the model and device."""
    loaded = runner.loaded
    if loaded.device.type != "cuda" or not isinstance(runner.kernel, VarlenKernel):
        return None
    try:
        kernels = importlib.import_module("specgate.runtime.cuda.decoder.few_row_kernels")
        return FewRows(loaded, runner.call, kernels.FewRowKernels)
    # The form is another one, Triton is missing, or there is no memory for the weights as one matrix.
    except Exception as reason:
        _tell(reason)
        return None


def serve_few_rows(runner: ModelRunner, few_rows: FewRows, check: Callable[[], object]) -> None:
    """Let ``few_rows`` serve if ``check``, which runs forwards, raises nothing."""
    runner.call = few_rows
    try:
        check()
    # Kernels that are compiled for this model fail in the ways of their compiler.
    except Exception as reason:
        _give_up(runner, few_rows, reason)


def keep_if_fast(runner: ModelRunner, capturer: Capturer | None, measure: Measure) -> None:
    """Let the model's own forward serve again where few rows of their own take clearly longer, as they will be run."""
    few_rows = runner.call
    if not isinstance(few_rows, FewRows):
        return

    def time_with(call: Forward, bucket: Bucket) -> int:
        runner.call = call
        if capturer is not None:
            runner.capture([bucket], capturer, lambda *_: None)
        try:
            return max(cost.forward_us for cost in measure(runner) if cost.rows <= _TIMED_ROWS)
        finally:
            runner.drop_graphs()

    try:
        plain_us = time_with(few_rows.otherwise, Bucket(1, _TIMED_ROWS))
        own_us = time_with(few_rows, Bucket(1, FEW_ROWS, few=True))
    except Exception as reason:
        _give_up(runner, few_rows, reason)
        return
    if own_us > MOST_SLOWER * plain_us:
        _give_up(runner, few_rows, f"they take {own_us} us, the model's own {plain_us}")
    else:
        _log.info("forwards of few rows have kernels of their own: %d us, the model's own %d", own_us, plain_us)


def _give_up(runner: ModelRunner, few_rows: FewRows, reason: "Exception | str") -> None:
    runner.call = few_rows.otherwise
    _tell(reason)
    wait_for(runner.device)


def _tell(reason: "Exception | str") -> None:
    why = reason if isinstance(reason, str) else reason_of(reason)
    _log.warning("forwards of few rows have no kernels of their own: %s", why)
