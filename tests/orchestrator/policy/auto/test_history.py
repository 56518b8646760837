"""What is remembered of texts."""

from orchestrator.policy.auto.history import MOST_TOKENS, PART_TOKENS, PRIOR_TOKENS, History
from orchestrator.policy.auto.observation import Observation, PreviousRound


def judged(accepted: int, gamma: int, **changes: object) -> Observation:
    """A round with half the confidence everywhere but in front of it."""
    seen = {
        "before": 0.99,
        "after": 0.6,
        "proposed": gamma,
        "judged": min(accepted + 1, gamma),
        "accepted": accepted,
        "accepted_confidences": (0.6,) * accepted,
    }
    return Observation(**seen | changes)


def test_a_round_tells_of_each_of_its_tokens() -> None:
    history = History()
    history.add(0, judged(2, 3))
    text = history.text()
    assert len(text.runs) == PRIOR_TOKENS + 3
    # Two stood from the first place on, one from the second, and none where the third was rejected.
    assert text.runs[-3:] == [2, 1, 0]
    assert text.buckets[-3:] == [6, 3, 3]


def test_without_confidences_the_last_known_one_holds() -> None:
    history = History()
    history.add(0, judged(2, 3, accepted_confidences=()))
    assert history.text().buckets[-3:] == [6, 6, 6]


def test_of_bonus_and_solo_tokens_as_much_is_expected_as_of_others() -> None:
    good, bad = History(), History()
    for _ in range(200):
        good.add(0, judged(3, 3))
        bad.add(0, judged(0, 3))
        bad.add(0, Observation(0.99, 0.6, streamed=True))
    assert good.text().agreement > 0.9
    assert bad.text().agreement < 0.1


def test_whether_something_was_prepared_is_known_where_something_was_drafted() -> None:
    history = History()
    for prepared in (0, 1, 2):
        history.add(0, judged(1, 2, prepared=prepared, previous_round=PreviousRound(2, True)))
    # What follows a run of solo tokens says nothing of what follows a round.
    history.add(0, judged(1, 2, prepared=1))
    for streamed in (False, True):
        history.add(0, Observation(0.99, 0.6, streamed=streamed))
    assert history.text().ready[-10:] == [False, None, True, None, True, *[None] * 5]


def test_sessions_do_not_run_into_each_other() -> None:
    history = History()
    for _ in range(4):
        history.add(1, judged(3, 4))
        history.add(2, judged(0, 4))
    runs = history.text().runs
    assert runs[-4:] == [0, 0, 0, 0]
    assert runs[-20:-4] == [3, 2, 1, 0] * 4


def test_old_texts_are_forgotten_and_broken_sessions_with_them() -> None:
    history = History()
    for session in range(2 * MOST_TOKENS):
        history.add(session, judged(0, 2))
    assert MOST_TOKENS - PART_TOKENS < len(history.text().runs) <= MOST_TOKENS
    assert len(history._open) <= MOST_TOKENS
    history.add(5000, judged(0, 2, finished=True))
    assert 5000 not in history._open
