"""Forwards in a row on tokens that the host has not read: a draft of γ tokens waits for its device once, not γ times.

What a forward chose is written into the inputs of the next one on the device itself. The host launches all of them,
one behind the other, and reads all that was chosen in one go.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from specgate.errors import NonFiniteLogits, reason_of
from specgate.runtime.batch_sampler import Answer, Choosing, answer_of, chosen_on_device
from specgate.runtime.engine.isolation import device_is_lost
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.scheduler import Rows

_UNREAD = 0
"""Stands for a token until it is read."""
log = logging.getLogger(__name__)


class Link(NamedTuple):
    """One sequence of a chain: the rows of its first forward, whose last one's logits are wanted, and how to choose."""

    rows: Rows
    choose: Choosing


def run_chain(runner: ModelRunner, links: Sequence[Link], num_steps: int) -> list[Answer | NonFiniteLogits] | None:
    """Run ``num_steps`` forwards; return each sequence's logits [num_steps, vocabulary] and what was chosen from them.

    All tokens but the last one are then the sequence's, and cached. There is room for them, and all links choose by one
    law. Where they are one call, that may end earlier. None: a forward failed, and all sequences are as they were.

    Raises:
        Exception: the device is lost, for everybody.
    """
    before = [(link.rows.sequence, len(link.rows.sequence), link.rows.sequence.num_cached) for link in links]
    try:
        logits, table = (_in_one_call if in_one_call(runner, links) else _forwards)(runner, links, num_steps)
        # Told of all steps, then cut up by sequences.
        told = table.transpose(0, 1).tolist()
    except Exception as error:
        if device_is_lost(error):
            raise
        log.warning("several forwards in a row failed: %s", reason_of(error))
        for sequence, length, num_cached in before:
            _restore(sequence, length, num_cached)
        return None
    answers = [answer_of(own, rows, link.choose) for own, rows, link in zip(logits, told, links, strict=True)]
    for (sequence, length, _), rows in zip(before, told, strict=True):
        sequence.token_ids[length:] = [int(row[0]) for row in rows[:-1]]
    return answers


def in_one_call(runner: ModelRunner, links: Sequence[Link]) -> bool:
    """Return whether the runner drafts these in one call."""
    return runner.drafter is not None and runner.drafter.fits([link.choose for link in links])


def _in_one_call(
    runner: ModelRunner, links: Sequence[Link], num_steps: int
) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    logits, table = runner.draft([link.rows for link in links], [link.choose for link in links], num_steps)
    return logits.unbind(1), table


def _forwards(
    runner: ModelRunner, links: Sequence[Link], num_steps: int
) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    """Return each sequence's logits [steps, vocabulary], and the tables [steps, sequences, 4] of what was chosen."""
    batch = [link.rows for link in links]
    logits: list[list[torch.Tensor]] = []
    tables: list[torch.Tensor] = []
    for step in range(num_steps):
        if step:
            for link in links:
                link.rows.sequence.append([_UNREAD])
            batch = [Rows(link.rows.sequence, 1, 1) for link in links]
        logits.append(runner.forward(batch, token_ids=tables[-1][:, 0].long() if step else None))
        choices = [link.choose._replace(position=link.choose.position + step) for link in links]
        tables.append(chosen_on_device(logits[-1], choices, runner.chooser))
    return [torch.cat(own) for own in zip(*logits, strict=True)], torch.stack(tables)


def _restore(sequence: KVSequence, length: int, num_cached: int) -> None:
    sequence.truncate(length)
    sequence.num_cached = num_cached
