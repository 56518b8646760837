"""What a round costs, in microseconds, from the rounds before it.

Learned are quantities that do not hang on how far anybody drafts now: what a forward takes for its rows, what a draft
takes for its tokens, what the network takes, and how many sessions are there. What a choice costs under load then
follows from them, also for choices that nobody makes at present.
"""

import math
from collections import deque

from orchestrator.policy.auto.batch_overlap import BatchOverlap
from orchestrator.policy.auto.fit import Line, Mean
from orchestrator.policy.auto.forwards import Forwards
from orchestrator.policy.auto.observation import Observation, PreviousRound
from orchestrator.policy.auto.preparing import Preparing, in_jitters
from orchestrator.policy.auto.prices import Prices

HALF_LIFE, HALF_LIFE_FORWARDS = 60, 120
"""In verdicts of each session, and in forwards, of which many sessions tell at once."""
JITTER = 0.1
"""In forwards: measured, with a cheap draft and with a dear one."""
FIRST_LEAD, LEAD_COUNT = 0.5, 4.0
"""In forwards: what a prepared draft is ahead, as long as that was seen less often than so."""
UNPREPARED = 64.0
"""Rounds in a row for which a drafter that works ahead has something, sooner or later."""
THERE_SHARE, THERE_COUNT = 0.6, 8.0
"""Of what a round takes that asks, what one takes that need not; as long as that was seen less often than so."""
LATE = 0.3
"""The chance that an announcement came late, beyond which its round tells of waiting."""
SOLO_COUNT = 4.0
"""Solo tokens of one kind until they weigh as much as those of all kinds."""
MIN_ROUNDS = 8
"""Rounds before costs count as known."""
MAX_WAIT = 0.4
"""Forwards that a lone session's round waits before its own one, at the most: more was seen when it was not alone."""
NUM_RECENT = 64
"""Verdicts in whose forwards sessions of other gateways are looked for."""
NUM_VERDICTS_ALIVE = 1024
"""Verdicts of others after which a silent session counts no more."""


class Costs:
    """Learns prices from verdicts."""

    def __init__(self) -> None:
        self._forwards = Forwards(HALF_LIFE_FORWARDS)
        # Drafts take nothing but their tokens, until more is seen.
        self._draft = Line(2, (((1, 0), 0.2), ((0, 1), 0.01)), HALF_LIFE)
        self._overhead_us, self._wait_us, self._solo_us = Mean(HALF_LIFE), Mean(HALF_LIFE), Mean(HALF_LIFE)
        self._warm_solo_us, self._quiet_solo_us = Mean(HALF_LIFE), Mean(HALF_LIFE)
        """Of a lone session's solo tokens, where the drafter followed each of them, and where it did not."""
        self._there_us, self._lead_us = Mean(HALF_LIFE), Mean(HALF_LIFE)
        self._forward_us, self._meeting = Mean(HALF_LIFE), BatchOverlap(HALF_LIFE)
        self._catch_up_us = Mean(HALF_LIFE)
        self._batches: deque[int] = deque(maxlen=NUM_RECENT)
        self._last_verdict: dict[int, int] = {}
        self._num_verdicts = 0
        self._num_rounds = 0
        self._unprepared = 0.0
        """Rounds of each session in a row for which nothing had been prepared."""

    def observe(self, seen: Observation, session: int = 0, *, announced: bool = True) -> None:
        """Take a verdict of a session in. One that may have waited for a prefill tells nothing of costs.

        Args:
            announced: the drafter tells of what is there.
        """
        self._count_session(session, seen)
        if not seen.verify_us:
            return
        if not seen.settled:
            self._observe_catching_up(seen)
            return
        if seen.forward_us and not seen.batch_rows:
            # A prompt ran along: no measure of a round, and far enough off to bend the line.
            return
        batch = max(seen.batch_sessions, 1)
        # A verifier that tells nothing of its forwards is taken at the round's word.
        rows = seen.batch_rows or batch * (seen.proposed + 1)
        forward_us = seen.forward_us or seen.verify_us
        # Forgotten with the time that passes: of many sessions there are as many times the verdicts.
        weight = 1 / max(len(self._last_verdict), 1)
        self._forwards.add(rows, batch, forward_us, weight=max(weight, 1 / batch))
        waited_us = max(seen.verify_us - forward_us, 0)
        if seen.streamed:
            self._solo_us.add(waited_us, weight=weight)
            if self._sessions == 1:
                (self._warm_solo_us if seen.warm else self._quiet_solo_us).add(waited_us)
        else:
            self._wait_us.add(waited_us, weight=weight)
        if seen.proposed:
            self._observe_round(seen, weight, announced=announced)
        cycle_us = seen.verify_us if seen.streamed else seen.round_us + seen.read_us
        self._forward_us.add(forward_us, weight=weight)
        self._meeting.add(forward_us + self._solo_us.value, cycle_us, batch, self._sessions, weight)

    def _observe_round(self, seen: Observation, weight: float, *, announced: bool) -> None:
        """Take in what a draft took, and the way to it."""
        self._num_rounds += 1
        # A reader takes his time with every round: fewer of them are less of it.
        overhead_us = max(seen.round_us - seen.draft_us - seen.verify_us, 0) + seen.read_us
        if seen.proposed > seen.ready:
            self._overhead_us.add(overhead_us, weight=weight)
            # One that lay there has waited for no forward.
            if seen.proposed > seen.prepared:
                draft_us = max(seen.draft_us - self._held_up(seen), 0)
                self._draft.add((1, seen.proposed - seen.prepared), draft_us, weight=weight)
        elif self._is_early(seen):
            self._there_us.add(overhead_us, weight=weight)
        if seen.previous_round is not None:
            self._unprepared = 0.0 if seen.prepared else self._unprepared + weight
        if seen.previous_round is not None and seen.prepared:
            lead_us = self._lead(seen, seen.previous_round, announced=announced)
            self._lead_us.add(lead_us, within=max(self._forward_us.value, 1.0), weight=weight)

    def _observe_catching_up(self, seen: Observation) -> None:
        """Take in what a round took longer whose drafter had to read a solo run; a first one had its prompt to read."""
        is_measure = seen.proposed and seen.before is not None and (seen.batch_rows or not seen.forward_us)
        if is_measure and self._overhead_us.known:
            draft_us, token_us = self._draft.lately
            usual_us = self._overhead_us.value + draft_us + token_us * seen.proposed
            more_us, most_us = seen.round_us + seen.read_us - seen.verify_us - usual_us, self._forward_us.value
            # One that was held up otherwise must not put all probes off.
            self._catch_up_us.add(min(max(more_us, -most_us), most_us), within=most_us)

    def leave(self, session: int) -> None:
        """Count a session no more."""
        self._last_verdict.pop(session, None)

    def now(self, *, announced: bool = False) -> Prices | None:
        """Return the prices of this moment, None before there were rounds enough.

        Args:
            announced: the drafter tells of what is there, so that it need not be asked for.
        """
        if self._num_rounds < MIN_ROUNDS:
            return None
        draft_us, token_us = self._draft.coefficients
        mean_us = max(self._forward_us.value, 1.0)
        overhead_us = there_us = self._overhead_us.value if self._overhead_us.known else self._there_us.value
        if self._overhead_us.known and announced and self._prepares:
            there_us = self._there_us.drawn(THERE_SHARE * overhead_us, THERE_COUNT)
        return Prices(
            forwards=self._forwards.prices,
            solo_us=self._solo_us_of(self._warm_solo_us),
            alone_us=self._solo_us_of(self._quiet_solo_us),
            catch_up_us=max(self._catch_up_us.value, 0.0),
            wait=min(self._wait_us.value / mean_us, MAX_WAIT),
            overhead_us=overhead_us,
            draft_us=draft_us,
            token_us=token_us,
            sessions=self._sessions,
            groups=self._meeting.groups(self._sessions),
            there_us=there_us,
            lead_us=self._lead_us.drawn(FIRST_LEAD * mean_us, LEAD_COUNT),
            jitter_us=JITTER * mean_us,
            prepares=self._prepares,
        )

    def _solo_us_of(self, kind: Mean) -> float:
        """Return what a token of one kind takes besides its forward; a crowd's are all beside somebody's drafts."""
        of_all_us = self._solo_us.value
        return kind.drawn(of_all_us, SOLO_COUNT) if self._sessions == 1 else of_all_us

    def _preparing(self) -> Preparing:
        mean_us = max(self._forward_us.value, 1.0)
        return Preparing(self._draft.lately[1], self._forwards.row_us, self._lead_us.value, JITTER * mean_us)

    def _is_early(self, seen: Observation) -> bool:
        """Return whether what was announced need not be waited for, as far as is known."""
        longest = max(seen.proposed, seen.previous_round.prepare) if seen.previous_round is not None else seen.proposed
        return self._preparing().is_busy(longest, longest) < LATE

    def _held_up(self, seen: Observation) -> float:
        """Return for how long a draft waited for a forward that was under way when it was asked for."""
        if seen.prepared:
            return self._draft.lately[1] / 2
        if seen.previous_round is None or not self._prepares:
            return 0.0
        return self._preparing().held_up(0, seen.previous_round.prepare)

    @property
    def _prepares(self) -> bool:
        return self._lead_us.known and self._unprepared < UNPREPARED

    def _lead(self, seen: Observation, previous_round: PreviousRound, *, announced: bool) -> float:
        """Return the lead that a prepared draft had, beyond what the draft tokens judged before it gave."""
        preparing = self._preparing()
        token_us, given_us = preparing.token_us, preparing.row_us * previous_round.gamma
        longest = max(seen.proposed, previous_round.prepare)
        waited_us = max(seen.draft_us - self._draft.lately[0], 0)
        if seen.proposed > seen.prepared:
            # What is counted as there was asked for while the last of it was under way.
            return max(token_us * seen.proposed - waited_us, token_us * (seen.prepared - 1)) - given_us
        if announced and not seen.ready:
            # Nobody tells which forward was waited for: the one that is nearest to what is known.
            leads = (token_us * num_tokens - given_us - waited_us for num_tokens in range(seen.proposed, longest + 1))
            return min(leads, key=lambda lead_us: abs(lead_us - preparing.lead_us))
        # It was longer, nobody knows by how much: what is to be expected then, by all that is known (Tobin, 1958).
        taken_us = token_us * (longest if announced else seen.proposed) - given_us
        early = in_jitters(preparing.lead_us - taken_us, preparing.jitter_us)
        return taken_us + preparing.jitter_us * math.log1p(math.exp(early)) * (1 + math.exp(-early))

    def _count_session(self, session: int, seen: Observation) -> None:
        self._num_verdicts += 1
        self._batches.append(seen.batch_sessions)
        # Taken out and put in again, so that the one that was silent for longest comes first.
        self._last_verdict.pop(session, None)
        self._last_verdict[session] = self._num_verdicts
        if seen.finished:
            self.leave(session)
        # One whose reader has stopped is no load.
        oldest = next(iter(self._last_verdict), session)
        if self._last_verdict.get(oldest, self._num_verdicts) < self._num_verdicts - NUM_VERDICTS_ALIVE:
            self.leave(oldest)

    @property
    def _sessions(self) -> int:
        """This gateway's; or more, where a forward was shared with other gateways' sessions."""
        return max(len(self._last_verdict), 1, *self._batches)
