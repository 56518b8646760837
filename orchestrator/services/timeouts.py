"""How long the links wait before they take silence for death. All in seconds."""

from dataclasses import dataclass

LOADING_S = 600.0
"""How long the first verifier may take to be there: a large model takes minutes to load."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Waiting times of one orchestrator, in seconds.

    A first answer has the prefill before it and so its own limit. Afterwards a draft may take ``draft_floor_s``, or ten
    times as long as the slowest one or its tokens took, but no longer than a first one; a verdict ``verdict_floor_s``,
    or twenty times the slowest one seen.
    ``failover_s`` bounds the search for another verifier: as long as a replacement may take; with ``open_s`` it bounds
    the search for a request's first one. ``connect_drafter_s``, of
    an orchestrator's start and of a request's, is short because a missing drafter is no error.
    """

    connect_s: float = 10.0
    connect_drafter_s: float = 3.0
    open_s: float = 10.0
    first_draft_s: float = 30.0
    draft_floor_s: float = 1.0
    first_verdict_s: float = 60.0
    verdict_floor_s: float = 5.0
    failover_s: float = 10.0
