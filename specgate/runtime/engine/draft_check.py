"""Drafts in one call serve only where they are what forwards in a row give, and take less time."""

import logging
import time
from collections.abc import Callable

import torch

from specgate.errors import reason_of
from specgate.runtime.attention.interface import wait_for
from specgate.runtime.cuda.decoder.drafting import StackedDecoder, StepLauncher
from specgate.runtime.cuda.decoder.shape import shape_of
from specgate.runtime.cuda.decoder.weights import stack_weights
from specgate.runtime.cuda.graphs import Capturer
from specgate.runtime.decoder_form import form_of
from specgate.runtime.engine.chain import Link, run_chain
from specgate.runtime.engine.graph_check import opened
from specgate.runtime.engine.isolation import device_is_lost
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import compare
from specgate.runtime.loading import LoadedModel, Progress
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows
from specgate.types import SamplingParams

_STEPS = 4
_WIDTHS = (2, 1)
"""Rows of the sequences that are compared: what a round brings where all of a draft was accepted, and where not."""
_MOST_TOKENS = 600
"""Of such a sequence: so many that attention puts several parts together."""
_TIMED_DRAFTS = 5
DRAFT_ROOM = 16
"""Tokens that a draft which is timed takes no more than."""
_ON_CUDA, _ELSEWHERE = (torch.bfloat16, torch.float16), (torch.float32,)
"""Number formats that the kernels are made for, and that of Triton's interpreter."""
_log = logging.getLogger(__name__)


def stack_decoder(loaded: LoadedModel, page_size: int) -> StackedDecoder | None:
    """Put the weights of a drafter's layers together, which stay the model's own; None: it is of another form.

    To be called before weights are fused.
    """
    num_columns = -(-loaded.context_length // page_size)
    try:
        form = form_of(loaded.model)
        shape = shape_of(form, page_size, num_columns, _ON_CUDA if loaded.device.type == "cuda" else _ELSEWHERE)
        return StackedDecoder(shape, stack_weights(form, loaded.context_length))
    # The form is another one, or there is no memory for the weights as one matrix.
    except Exception as reason:
        _log.info("drafts of %s are not made in one call: %s", loaded.architecture, reason_of(reason))
        return None


def chain_us(runner: ModelRunner) -> float:
    """Return the least microseconds that a token of a short draft takes, read and all."""
    times = []
    with opened(runner, _WIDTHS[:1]) as [rows]:
        sequence, start, length = rows.sequence, rows.sequence.num_cached, len(rows.sequence)
        runner.pool.extend(sequence, length + _STEPS)
        for _ in range(_TIMED_DRAFTS):
            begin_s = time.perf_counter()
            run_chain(runner, [Link(rows._replace(num_logits=1), _greedy(runner, length))], _STEPS)
            times.append(time.perf_counter() - begin_s)
            sequence.truncate(length)
            sequence.num_cached = start
    return min(times) / _STEPS * 1e6


def add_drafter(
    runner: ModelRunner,
    decoder: StackedDecoder,
    launcher: StepLauncher,
    capturer: Capturer,
    progress: Progress,
    us_of: Callable[[ModelRunner], float] = chain_us,
) -> None:
    """Let ``launcher`` draft if it gives what forwards in a row do, and takes less time.

    Args:
        us_of: times a runner's drafts.

    Raises:
        RuntimeError: the device is lost, and with it everything.
    """
    progress("drafts", 0, 1)
    plain_us = us_of(runner)
    try:
        runner.drafter = runner.drafter_by(launcher, decoder, capturer)
        _check(runner)
        us = us_of(runner)
    # Whatever keeps it from serving, forwards in a row do.
    except Exception as error:
        if device_is_lost(error):
            raise
        runner.drafter = None
        _log.warning("drafts by %s are not used: %s", launcher.name, reason_of(error))
        wait_for(runner.device)
    # It is gone, too, where it failed when it was timed.
    if runner.drafter:
        times = sorted([(plain_us, runner.drafts_by), (us, launcher.name)])
        runner.drafts_by = f"{', '.join(f'{name} {us:.0f}' for us, name in times)} us a token"
        if plain_us <= us:
            runner.drafter = None
    progress("drafts", 1, 1)


def _check(runner: ModelRunner) -> None:
    """Raise UnsupportedArchitecture where the logits of drafts are not near those of forwards of the same tokens."""
    num_sequences = min(len(_WIDTHS), runner.pool.num_pages)
    room = runner.pool.num_pages // num_sequences * runner.pool.page_size
    head = min(_MOST_TOKENS, room, runner.loaded.context_length) - _STEPS - max(_WIDTHS)
    with opened(runner, _WIDTHS[:num_sequences], head) as batch:
        for rows in batch:
            runner.pool.extend(rows.sequence, len(rows.sequence) + _STEPS)
        choices = [_greedy(runner, len(rows.sequence)) for rows in batch]
        logits, tables = runner.draft([rows._replace(num_logits=1) for rows in batch], choices, _STEPS)
        for rows, table in zip(batch, tables, strict=True):
            rows.sequence.append([int(row[0]) for row in table[:-1]])
            rows.sequence.num_cached = head
        again = [Rows(rows.sequence, len(rows.sequence) - head, _STEPS) for rows in batch]
        compare(runner.loaded, runner.forward(again, use_graphs=False), logits)


def _greedy(runner: ModelRunner, position: int) -> SamplingStep:
    return SamplingStep(SamplingParams(temperature=0.0), 0, position, runner.vocab_size)
