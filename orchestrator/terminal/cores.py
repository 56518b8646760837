"""What this process may run on."""

import os


def num_usable_cores() -> int:
    """Return how many cores this process may use: those it is bound to, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
