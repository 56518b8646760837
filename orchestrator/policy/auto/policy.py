"""``auto`` for one session: picks γ each round to maximise estimated tokens/s, and probes drafting now and then.

It keeps the target's distribution because of what it sees: the target's confidence in committed tokens, and finished
rounds with their accepted tokens, the draft's confidence in what was judged, times and batch sizes. It never sees a
pending proposal: ``plan`` runs before the draft is requested, and a record arrives after its verdict is committed.
Probes are counted, not random.
"""

from orchestrator.policy.auto.choice import RatedChoice
from orchestrator.policy.auto.history import bucket_of
from orchestrator.policy.auto.mode import ModeLearner
from orchestrator.policy.gates import DrafterState, ExpectedPlan, Progress
from specgate.types import RoundPlan, WhyAlone

PROBE_ROUNDS = 2
"""Rounds of one probe: in the second the drafter is ready and may have a prepared proposal."""


class Auto:
    """See ``gates.Policy``. ``max_gamma`` is the limit of the request.

    A drafter that copies is asked for nothing. Where its drafts pay the target takes what has arrived, up to
    ``longest_copy`` tokens at a time; 0 is any other drafter.
    """

    def __init__(self, mode: ModeLearner, drafter: DrafterState, max_gamma: int, longest_copy: int = 0) -> None:
        self._mode = mode
        self._drafter = drafter
        self._max_gamma = max_gamma
        self._longest_copy = longest_copy
        self._probes_left = 0

    def plan(self, session: Progress) -> RoundPlan:
        """Return the next round's plan."""
        found = self._found()
        if found is None:
            return RoundPlan(1)
        choice = found.choice.of(session.agreement)
        is_closed = bucket_of(session.confidence) < choice.closed
        if not self._probes(found, session):
            return self._gated(found, 0 if is_closed else choice.gamma, session)
        # A probe sets no gate at the verifier, so that this policy plans the next round as well.
        # It counts only once the drafter has read the text.
        self._probes_left -= is_closed and self._drafter.available
        if choice.running:
            return self._gated(found._replace(choice=choice.opened), 0, session)
        # After the last one nothing needs preparing; 0 would let the drafter decide.
        return RoundPlan(choice.gamma, choice.stop_below, prepare=choice.gamma if self._probes_left else 1)

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        """Return the next round's plan if it follows the current choice; None during a probe."""
        found = self._found()
        if found is None:
            return ExpectedPlan(RoundPlan(1))
        choice = found.choice.of(session.agreement)
        if self._probes_left or not choice.drafts or choice.running:
            return None
        return ExpectedPlan(self._gated(found, choice.gamma, session), choice.solo_below)

    def _found(self) -> RatedChoice | None:
        found = self._mode.choice(self._max_gamma)
        if found is None or not self._longest_copy:
            return found
        choice = found.choice._replace(gamma=self._longest_copy, running=True, leaves_poor=False)
        # A probe of it is a run, too, and costs what its copies do.
        num_copies = max(self._mode.copied * found.longest_run, 1.0)
        return found._replace(choice=choice, probe_us=found.probe_us * num_copies, ahead=choice.gamma)

    def _probes(self, found: RatedChoice, session: Progress) -> bool:
        """Return whether this round is a probe; begin one when it is due."""
        if not found.choice.closed or found.choice.of(session.agreement) != found.choice:
            # The probe has changed the choice, or the text is known to be a poor one, so it ends.
            self._probes_left = 0
        elif not self._probes_left and self._mode.book_probe(PROBE_ROUNDS * found.probe_us, self._drafter.num_unread):
            self._probes_left = PROBE_ROUNDS
        return self._probes_left > 0

    def _gated(self, found: RatedChoice, gamma: int, session: Progress) -> RoundPlan:
        """Return the plan of a choice, with its solo run at the verifier."""
        choice, longest = found.choice.of(session.agreement), min(session.remaining, found.longest_run)
        if choice.running and choice.drafts:
            why, gamma = WhyAlone.NO_COPY if self._longest_copy else WhyAlone.NOT_YET, choice.gamma
            return RoundPlan(0, 0.0, choice.solo_below, longest, gamma, True, why, gamma, found.ahead)
        run = longest if choice.closed else 0
        # The drafter prepares no more tokens than a round uses, and none if nothing is drafted.
        prepare, stop_below = (choice.gamma, choice.stop_below) if choice.drafts else (0, 0.0)
        why_alone = None if gamma else WhyAlone.GATE if choice.drafts else WhyAlone.NO_GAIN
        return RoundPlan(gamma, stop_below, choice.solo_below, run, prepare, choice.drafts, why_alone)
