"""How often draft tokens stood, by the target's confidence before them: counted, nothing forgotten."""

from typing import Any

from orchestrator.policy.auto.agreement import BUCKET_EDGES, NUM_BUCKETS, bucket_of
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.auto.observation import Mode, Observation

NUM_POSITIONS = 8


class CountingLearner(Learner):
    """A learner that counts too. Fixed choices teach it, so that ``auto`` learns from its own rounds alone."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = [[0] * NUM_POSITIONS for _ in range(NUM_BUCKETS)]
        self.accepted = [[0] * NUM_POSITIONS for _ in range(NUM_BUCKETS)]

    def observe(self, mode: Mode, session: int, seen: Observation, *, max_gamma: int = 0) -> None:
        """Count a verdict, and learn from it."""
        super().observe(mode, session, seen, max_gamma=max_gamma)
        bucket = bucket_of(seen.before)
        for index in range(min(seen.judged, NUM_POSITIONS)):
            self.judged[bucket][index] += 1
            self.accepted[bucket][index] += index < seen.accepted

    def to_object(self) -> dict[str, Any]:
        """Return the counts by bucket of confidence and position in the draft."""
        return {"edges": list(BUCKET_EDGES), "judged": self.judged, "accepted": self.accepted}
