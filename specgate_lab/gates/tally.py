"""How often draft tokens stood, by the target's confidence before them: counted, nothing forgotten."""

from dataclasses import dataclass
from typing import Any

from orchestrator.policy.auto.costs import MeasuredCosts
from orchestrator.policy.auto.history import BUCKET_EDGES, NUM_BUCKETS, bucket_of
from orchestrator.policy.auto.learner import Learner, Observer
from orchestrator.policy.gates import Asked
from specgate.types import RoundRecord

NUM_POSITIONS = 8


class CountingLearner(Learner):
    """A learner that counts too. Fixed choices teach it, so that ``auto`` learns from its own rounds alone."""

    def __init__(self) -> None:
        super().__init__(MeasuredCosts)
        self.judged = [[0] * NUM_POSITIONS for _ in range(NUM_BUCKETS)]
        self.accepted = [[0] * NUM_POSITIONS for _ in range(NUM_BUCKETS)]

    def observer(self, request: Asked) -> Observer | None:
        """Return whom to tell of a session's verdicts: it counts them, and learns."""
        observer = super().observer(request)
        return CountingObserver(observer.mode, observer.session, self) if observer else None

    def count(self, record: RoundRecord) -> None:
        """Count a verdict."""
        bucket = bucket_of(record.confidence)
        for index in range(min(record.num_judged, NUM_POSITIONS)):
            self.judged[bucket][index] += 1
            self.accepted[bucket][index] += index < record.num_accepted

    def to_object(self) -> dict[str, Any]:
        """Return the counts by bucket of confidence and position in the draft."""
        return {"edges": list(BUCKET_EDGES), "judged": self.judged, "accepted": self.accepted}


@dataclass(frozen=True, slots=True)
class CountingObserver(Observer):
    """Tells the learner, and counts."""

    tally: CountingLearner

    def __call__(self, record: RoundRecord, /) -> None:
        Observer.__call__(self, record)
        self.tally.count(record)
