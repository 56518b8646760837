"""The cores that this process may use."""

import os


def num_usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cores_for_pinning() -> tuple[int, int] | None:
    """Return a core for the drafter and one for the verifier, None where this process may use one core only."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else None
