"""The search for a table, in steps, and how long one stays in use."""

from collections.abc import Generator, Iterator
from dataclasses import replace

from orchestrator.policy.auto.calibration import MIN_VERDICTS
from orchestrator.policy.auto.choice import Chooser, Table
from orchestrator.policy.auto.mode_state import MOST_SESSIONS, InUse, ModeState
from orchestrator.policy.auto.prices import Prices

MIN_VERDICTS_CLOSED = 24
"""Of a mode, before anything is left to the target alone: of few rounds many are odd ones."""
FIRST_VERDICTS_A_TABLE, VERDICTS_A_TABLE, MOST_VERDICTS_A_TABLE = 8, 32, 128
"""Of a mode, between two searches for a table: at first, later on where it has changed, and where it has not: a search
takes some milliseconds. In a crowd a table is searched for as if it had changed until it is known what it comes to."""
VERDICTS_A_MOVE, MAX_MOVES = 48, 8
"""A search may lead one move farther for so many verdicts of the mode that were seen."""
NEW_SHARE = 4
"""One verdict in so many of those that were seen is new when a search is worth its time."""
VERDICTS_SKIPPED, VERDICTS_SKIPPED_BEHIND_ALONE = 3, 16
"""Of each other session, which are held against no promise when the table changes. A solo run goes on for longer."""
TRIAL_VERDICTS, TRIAL_TOKENS = 24, 16
"""Of each session: how long a trial is, and its solo runs, so that it ends soon."""
LONE_TRIAL_VERDICTS = 4 * MIN_VERDICTS
"""Of a lone session: a trial ends at the first ``MIN_VERDICTS`` of its own; or after so many of its mode, if most of
them were other requests' or too early in their texts to count."""
TRIAL_REACH, LONE_TRIAL_REACH = 1.35, 1.15
"""A trial is worth it if so many times what the target alone promises were better than what is in use, as long as
nothing is known of it; the less doubt is left, the nearer to once. Drafts of others make a guess of the forward that
all sessions would share, which is farther off than what a lone one's drafter takes from its target."""


def search(known: ModeState, max_gamma: int, prices: Prices) -> Iterator[None]:
    """Put a table into ``known``, with pauses; the first one is at the beginning."""
    known.searched.add(max_gamma)
    try:
        yield
        known.tables[max_gamma] = yield from _found(known, known.tables.get(max_gamma), max_gamma, prices)
    finally:
        known.searched.discard(max_gamma)


def _found(known: ModeState, last: InUse | None, max_gamma: int, prices: Prices) -> Generator[None, None, InUse]:
    """Return the table that comes after ``last``, and when the next one is due."""
    text = known.history.text()
    yield
    ahead = known.readiness.ahead(max_gamma, text.agreement)
    may_close = known.num_verdicts >= MIN_VERDICTS_CLOSED
    chooser = Chooser(text, prices, max_gamma, ahead, known.calibration, may_close=may_close)
    if last is not None:
        known.mark_stable(last, chooser.load(last.table.choice).rate, prices.sessions)
    yield
    max_moves = min(max(known.num_verdicts // VERDICTS_A_MOVE, 1), MAX_MOVES)
    table = yield from chooser.search((last.resume or last.table.choice) if last is not None else None, max_moves)
    return _next(known, last, table, prices.sessions, chooser)


def _next(known: ModeState, last: InUse | None, table: Table, num_sessions: int, chooser: Chooser) -> InUse:
    """Put ``table`` into use, or go on with the last one if it does the same, or try the target alone first."""
    sessions = min(num_sessions, MOST_SESSIONS)
    stays = last is not None and table.choice.acts_as(last.table.choice)
    # A mistake that all sessions make is dear, and shows only when the promise is held against what the choice came to.
    may_rest = sessions == 1 or (last is not None and last.is_found_out)
    most = (MOST_VERDICTS_A_TABLE if stays and may_rest else VERDICTS_A_TABLE) * sessions
    due_at = known.num_verdicts + min(max(known.num_verdicts // NEW_SHARE, FIRST_VERDICTS_A_TABLE), most)
    resume = None
    most_reach, trial_verdicts = _trial(sessions)
    reach = 1 + known.doubt_of_alone(num_sessions) * (most_reach - 1)
    if not table.choice.drafts:
        known.put_off_trial(num_sessions)
    elif (trial := chooser.trial(table.choice, reach)) and known.take_trial(num_sessions):
        # It is short: drafts that are tried within it would be most of what is seen.
        trial = trial._replace(most_solo=TRIAL_TOKENS if sessions > 1 else MIN_VERDICTS, probes=False)
        table, resume, stays = trial, table.choice, False
        due_at = known.num_verdicts + trial_verdicts
    if last is not None and stays:
        return replace(last, table=table._replace(number=last.table.number), due_at=due_at, resume=None)
    known.num_tables += 1
    skipped = VERDICTS_SKIPPED if last is None or last.table.choice.drafts else VERDICTS_SKIPPED_BEHIND_ALONE
    counts_from = known.num_verdicts + skipped * (sessions - 1)
    return InUse(table._replace(number=known.num_tables), due_at, counts_from, num_sessions, resume=resume)


def _trial(sessions: int) -> tuple[float, int]:
    """Return how far a trial of the target alone reaches, and how many verdicts it takes."""
    return (TRIAL_REACH, TRIAL_VERDICTS * sessions) if sessions > 1 else (LONE_TRIAL_REACH, LONE_TRIAL_VERDICTS)
