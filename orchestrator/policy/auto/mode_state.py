"""What is known of one mode's requests, and what is in use for them."""

from dataclasses import dataclass, field

from orchestrator.policy.auto.ahead import PreparedDrafts
from orchestrator.policy.auto.calibration import Calibration, ChoiceCounts, WaitKind
from orchestrator.policy.auto.choice import Table
from orchestrator.policy.auto.history import History
from orchestrator.policy.auto.options import PlanChoice

MOST_SESSIONS = 8
"""Many sessions have so many verdicts in the time of one: up to so many times as many are waited for."""
ALIKE = 1.5
"""So many times as many sessions are another load."""
TRIAL_AFTER, LONE_TRIAL_AFTER, TRIAL_LONGER, TRIALS_APART = 64, 32, 4, 2048
"""Verdicts of each session before the target alone is tried (of a lone one fewer: its trial is short, and until then
the target alone seems slower than it is), so many times as many before each next trial, and the most between two."""


def is_same_load(sessions: int, others: int) -> bool:
    """Return whether so many sessions are about as many as so many ``others``."""
    return sessions <= ALIKE * others and others <= ALIKE * sessions


@dataclass(slots=True)
class InUse:
    """A table, what happened since it is in use, and at which verdict of its mode it is searched for again.

    Before the verdict ``counts_from`` other sessions are still about what the table before had planned. ``tally`` is of
    times when so many ``sessions`` were there, ``is_found_out`` says that it is known what the table comes to with
    about as many. ``resume`` is what is searched from behind a trial.
    """

    table: Table
    due_at: int
    counts_from: int
    sessions: int
    tally: ChoiceCounts = field(default_factory=ChoiceCounts)
    is_found_out: bool = False
    resume: PlanChoice | None = None

    def is_due(self, num_verdicts: int) -> bool:
        """Return whether to search again: a lone session's trial is over once it says anything."""
        is_found_out = self.resume is not None and self.sessions == 1 and self.tally.is_enough(1)
        return num_verdicts >= self.due_at or is_found_out

    def mark_stable(self, calibration: Calibration, rate: float, sessions: int) -> bool:
        """Tell ``calibration`` what the table came to, if known, while it would promise ``rate``; say whether."""
        if not is_same_load(sessions, self.sessions):
            self.tally, self.sessions, self.is_found_out = ChoiceCounts(), sessions, False
        elif self.tally.is_enough(min(sessions, MOST_SESSIONS)):
            calibration.mark_stable(self.table.choice, rate, self.tally)
            self.tally, self.is_found_out = ChoiceCounts(), True
            return True
        return False


@dataclass(slots=True)
class ModeState:
    """What is particular to requests of one mode."""

    history: History = field(default_factory=History)
    readiness: PreparedDrafts = field(default_factory=PreparedDrafts)
    calibration: Calibration = field(default_factory=Calibration)
    tables: dict[int, InUse] = field(default_factory=dict)
    """By the most draft tokens that a request allows."""
    searched: set[int] = field(default_factory=set)
    """For which of these a search goes on."""
    num_tables: int = 0
    num_verdicts: int = 0
    num_rounds: int = 0
    trial_at: int = 0
    sessions_alone: int = 0
    """How many there were when it was last found out what the target alone comes to."""
    credit_us: float = 0.0

    def take_trial(self, sessions: int) -> bool:
        """Return whether the target alone is to be tried now; if so the next time is put off.

        While drafts keep sessions apart it is only guessed what a forward of all of them takes, and while a drafter
        works beside a lone one what its target takes without that.
        """
        # A crowd puts it off for longer than is good for the session that it leaves behind.
        self.trial_at = min(self.trial_at, self.num_verdicts + TRIALS_APART * min(sessions, MOST_SESSIONS))
        first = TRIAL_AFTER * min(sessions, MOST_SESSIONS) if sessions > 1 else LONE_TRIAL_AFTER
        if self.num_verdicts < max(self.trial_at, first):
            return False
        self.put_off_trial(sessions)
        return True

    def put_off_trial(self, sessions: int) -> None:
        """Let the next trial be later, since the target alone is in use from now on."""
        apart = min((TRIAL_LONGER - 1) * self.num_verdicts, TRIALS_APART * min(sessions, MOST_SESSIONS))
        self.trial_at = self.num_verdicts + apart

    def mark_stable(self, last: InUse, rate: float, sessions: int) -> None:
        """Hold what ``last`` came to against the ``rate`` that it promises now, with so many sessions."""
        if last.mark_stable(self.calibration, rate, sessions) and not last.table.choice.drafts:
            self.sessions_alone = sessions

    def doubt_of_alone(self, sessions: int) -> float:
        """Return the share of doubt in what is known of the target alone with so many sessions."""
        return self.calibration.doubt(WaitKind.ALONE) if is_same_load(sessions, self.sessions_alone) else 1.0
