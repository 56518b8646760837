"""How long the links wait until silence counts as death. All in seconds."""

from dataclasses import dataclass

LOADING_S = 600.0
"""How long the first verifier may take to be there: a large model takes minutes to load."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Waiting times of one orchestrator, in seconds.

    A first answer includes a prefill and so has its own limit. Later, a draft may take ``draft_floor_s``, or ten times
    as long as the slowest draft or its own tokens took, but no longer than a first one. A verdict may take
    ``verdict_floor_s``, or twenty times as long as the slowest one. ``failover_s`` bounds the search for another
    verifier; ``failover_s`` plus ``open_s`` bounds the search for a request's first one. ``connect_drafter_s`` is short
    because a missing drafter is no error.
    """

    connect_s: float = 10.0
    connect_drafter_s: float = 3.0
    open_s: float = 10.0
    first_draft_s: float = 30.0
    draft_floor_s: float = 1.0
    first_verdict_s: float = 60.0
    verdict_floor_s: float = 5.0
    failover_s: float = 10.0
