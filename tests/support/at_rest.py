"""What there is where nobody asks for anything: as much after thousands of requests as before them."""

import gc
import time
from collections import Counter
from collections.abc import Callable

from tests.support.patience import PATIENCE_S

OURS = frozenset({"drafter_svc", "orchestrator", "specgate", "specgate_lab", "verifier_svc"})
BOUNDED = (
    "drafter_svc.run_ahead.learned",
    "drafter_svc.run_ahead.sharpness",
    "orchestrator.policy.auto",
    "specgate.runtime.prefixes",
    "specgate.types.grammar",
)
"""Modules of what is learned, by mode, and of what is cached: prefixes within the pages, compiled grammars."""
FEW = 8
"""Of a class that may be more: what is kept of the last requests. What leaks grows with their number."""


def at_rest() -> Counter[str]:
    """Return how many objects of our own classes are alive in this process, by class."""
    gc.collect()
    classes = Counter(map(type, gc.get_objects()))
    return Counter({f"{cls.__module__}.{cls.__qualname__}": count for cls, count in classes.items() if _counts(cls)})


def _counts(cls: type) -> bool:
    module = str(cls.__module__)
    return module.partition(".")[0] in OURS and not module.startswith(BOUNDED)


def check_at_rest(look: Callable[[], Counter[str]], before: Counter[str]) -> None:
    """Fail unless soon ``look`` sees as much as ``before``."""
    end_s = time.monotonic() + PATIENCE_S
    while (more := _more(look(), before)) and time.monotonic() < end_s:
        time.sleep(0.2)
    assert not more, more


def _more(now: Counter[str], before: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in (now - before).items() if count > FEW}
