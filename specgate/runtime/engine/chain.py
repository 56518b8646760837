"""Forwards in a row on tokens that the host has not read: a draft of γ tokens waits for its device once, not γ times.

Where the runner has a drafter, all of them are one call. Else what a forward chose is written into the inputs of the
next one on the device itself: the host launches all of them, one behind the other. It reads all that was chosen in one
go.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from specgate.errors import NonFiniteLogits, reason_of
from specgate.runtime.batch_sampler import Answer, SamplingStep, answer_of, chosen_on_device
from specgate.runtime.engine.isolation import device_is_lost
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.one_call import Drafted
from specgate.runtime.scheduler import Rows

_UNREAD = 0
"""Stands for a token until it is read."""
log = logging.getLogger(__name__)


class Link(NamedTuple):
    """One sequence of a chain: the rows of its first forward, whose last one's logits are wanted, and how to choose."""

    rows: Rows
    sample: SamplingStep


def in_one_call(runner: ModelRunner, links: Sequence[Link], num_steps: int) -> bool:
    """Return whether the runner drafts these in one call."""
    batch, choices = [link.rows for link in links], [link.sample for link in links]
    return runner.drafter is not None and runner.drafter.fits(batch, choices, num_steps)


def run_chain(runner: ModelRunner, links: Sequence[Link], num_steps: int) -> list[Answer | NonFiniteLogits] | None:
    """Run ``num_steps`` forwards; return each sequence's logits [steps, vocabulary] and what was chosen from them.

    All tokens but the last one are then the sequence's, and cached. There is room for them, and all links choose by one
    law. Where they are one call, that may end earlier. None: a forward failed, and all sequences are as they were.

    Raises:
        Exception: the device is lost, for everybody.
    """
    lengths = [len(link.rows.sequence) for link in links]
    drafted = None
    if in_one_call(runner, links, num_steps):
        batch, choices = [link.rows for link in links], [link.sample for link in links]
        what = "a draft in one call, which is not tried again,"
        drafted = _tried(links, what, lambda: runner.draft(batch, choices, num_steps))
        if drafted is None:
            runner.drafter = None
    drafted = drafted or _tried(links, "several forwards in a row", lambda: _forwards(runner, links, num_steps))
    if drafted is None:
        return None
    for link, length, rows in zip(links, lengths, drafted.tables, strict=True):
        link.rows.sequence.token_ids[length:] = [int(row[0]) for row in rows[:-1]]
    return [answer_of(own, rows, link.sample) for own, rows, link in zip(*drafted, links, strict=True)]


def _tried(links: Sequence[Link], what: str, run: Callable[[], Drafted]) -> Drafted | None:
    """Return what ``run`` does; None where it fails, and then all sequences are as they were."""
    before = [(link.rows.sequence, len(link.rows.sequence), link.rows.sequence.num_cached) for link in links]
    try:
        return run()
    except Exception as error:
        if device_is_lost(error):
            raise
        log.warning("%s failed: %s", what, reason_of(error))
        for sequence, length, num_cached in before:
            sequence.truncate(length)
            sequence.num_cached = num_cached
        return None


def _forwards(runner: ModelRunner, links: Sequence[Link], num_steps: int) -> Drafted:
    """Run them one by one, and read once."""
    batch = [link.rows for link in links]
    logits: list[list[torch.Tensor]] = []
    tables: list[torch.Tensor] = []
    for step in range(num_steps):
        if step:
            for link in links:
                link.rows.sequence.append([_UNREAD])
            batch = [Rows(link.rows.sequence, 1, 1) for link in links]
        logits.append(runner.forward(batch, token_ids=tables[-1][:, 0].long() if step else None))
        choices = [link.sample._replace(position=link.sample.position + step) for link in links]
        tables.append(chosen_on_device(logits[-1], choices, runner.chooser))
    # Told of all steps, then cut up by sequences.
    return Drafted([torch.cat(own) for own in zip(*logits, strict=True)], torch.stack(tables, 1).tolist())
