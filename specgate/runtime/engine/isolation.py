"""One bad part of a batch fails alone."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from specgate.errors import InternalError, ResourceExhausted, SpecgateError, reason_of

log = logging.getLogger(__name__)
Part = TypeVar("Part")
Outcome = TypeVar("Outcome")


def each_its_own(run: Callable[[list[Part]], Sequence[Outcome]], batch: list[Part]) -> list[Outcome | SpecgateError]:
    """Run a batch; one that fails is run again one by one, so that the others get what is theirs.

    Raises:
        Exception: the device is lost, for all parts.
    """
    if not batch:
        return []
    try:
        return list(run(batch))
    except Exception as error:
        if device_is_lost(error):
            raise
        if len(batch) > 1:
            return [each_its_own(run, [part])[0] for part in batch]
        log.warning("a forward pass failed: %s", reason_of(error))
        return [_as_specgate_error(error)]


def _as_specgate_error(error: Exception) -> SpecgateError:
    if isinstance(error, SpecgateError):
        return error
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return ResourceExhausted("out of memory in a forward pass")
    return InternalError(f"{type(error).__name__} in a forward pass")


def device_is_lost(error: Exception) -> bool:
    """Return whether the device is unusable, as its context is after any CUDA error but out-of-memory."""
    return not isinstance(error, torch.OutOfMemoryError) and "CUDA error" in str(error)
