"""Garbage collection in a process that serves."""

import gc


def freeze_loaded() -> None:
    """Take all that is alive now out of later collections. For a process of its own, once it is ready to serve.

    A whole collection stops every thread, for 100 ms and more where it walks all modules, classes and functions.
    """
    gc.collect()
    gc.freeze()
