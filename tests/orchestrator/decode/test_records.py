"""What a session says of each verdict: plan, proposal, verdict and timing as one value."""

from dataclasses import replace
from itertools import count

import pytest

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.session import Session
from specgate.types import (
    NO_PROPOSAL,
    DraftMethod,
    Proposal,
    RecentAgreement,
    RoundPlan,
    RoundRecord,
    RoundTiming,
    Verdict,
    WhyAlone,
)
from tests.support.decoding import make_spec


def watched(max_tokens: int = 40) -> tuple[Session, list[RoundRecord]]:
    """Return a session whose every step takes half a second, and what it says."""
    records: list[RoundRecord] = []
    ticks = count(0.5, 0.5)
    return Session(make_spec(max_tokens), OutputText(None), lambda: next(ticks), [records.append]), records


def recorded(*commits: tuple[Proposal, Verdict], max_tokens: int = 40) -> list[RoundRecord]:
    """One round a commit, but for solo verdicts, which belong to the round before."""
    session, records = watched(max_tokens)
    for proposal, verdict in commits:
        if not verdict.solo:
            session.draft_request(RoundPlan(len(proposal)))
        session.commit(proposal, verdict)
    return records


def test_a_round_is_one_value() -> None:
    draft, verdict = Proposal((11, 12, 13), draft_us=7), Verdict(1, 1, 20, 0.25, verify_us=9)
    (record,) = recorded((draft, verdict))
    timing, first = RoundTiming(500_000, 0, typical=False), RecentAgreement.FIRST
    assert record == RoundRecord(RoundPlan(3), draft, verdict, 2, None, timing, length=5, agreement=first)
    assert (record.num_judged, record.num_accepted, record.undrafted) == (2, 1, False)
    assert record.why_alone is None


def test_a_text_is_known_by_how_its_last_drafts_fared_and_forgotten_as_it_goes_on() -> None:
    draft = Proposal((11, 12, 13))
    *_, last = recorded(*((draft, Verdict(1, 0, 20)) for _ in range(4)), max_tokens=99)
    assert last.agreement == pytest.approx(0.37, abs=0.01)
    recent = RecentAgreement()
    for _ in range(30):
        recent.add(last)
    assert recent.value < 0.2
    solo = replace(last, proposal=NO_PROPOSAL)
    for _ in range(3 * RecentAgreement.HALF_LIFE):
        recent.add(solo)
    assert 0.4 < recent.value < RecentAgreement.FIRST


def test_solo_tokens_judge_nothing() -> None:
    draft = Proposal((11, 12))
    first, second = recorded((draft, Verdict(1, 2, 20, 0.1)), (draft, Verdict(1, 0, 21, 0.7, solo=True)))
    assert (first.num_judged, first.num_accepted) == (2, 2)
    assert (second.proposal, second.num_judged, second.confidence) == (NO_PROPOSAL, 0, 0.1)
    assert (second.undrafted, second.timing) == (True, RoundTiming())


def test_a_round_without_a_proposal_had_its_round_trip() -> None:
    _, second = recorded((Proposal(), Verdict(1, 0, 20, 0.1)), (Proposal(), Verdict(2, 0, 21, 0.2)))
    assert (second.undrafted, second.timing) == (True, RoundTiming(500_000))


def test_the_last_verdict_says_so_and_counts_what_was_kept() -> None:
    (record,) = recorded((Proposal((11, 12, 13)), Verdict(1, 3, 20, 0.5)), max_tokens=2)
    assert (record.finished, record.num_tokens, record.num_judged, record.num_accepted) == (True, 2, 2, 2)


def test_an_empty_verdict_changes_nothing_but_is_said() -> None:
    session, records = watched()
    session.draft_request(RoundPlan(1))
    session.commit(Proposal((11,)), Verdict(1, 0, 20, 0.5))
    session.draft_request(RoundPlan(1))
    session.commit(Proposal((12,)), Verdict(2))
    assert [one.num_tokens for one in records] == [1, 0]


def test_a_round_whose_draft_never_came_is_not_typical() -> None:
    session, records = watched()
    for number in (1, 2):
        session.draft_request(RoundPlan(3))
        session.commit(Proposal(), Verdict(number, 0, 20, 0.5))
    assert not records[1].timing.typical


def test_a_round_that_lost_its_verifier_is_not_typical() -> None:
    """It waited for another one to be found, and to read the text."""
    session, records = watched()
    for number in (1, 2, 3, 4):
        session.draft_request(RoundPlan(2))
        session.stats.verifier_failovers += number == 3
        session.commit(Proposal((11, 12)), Verdict(number, 1, 20, 0.5))
    assert [one.timing.typical for one in records] == [False, True, False, True]


def test_a_subscriber_that_breaks_costs_no_text() -> None:
    def breaks(record: RoundRecord) -> None:
        raise ZeroDivisionError

    session = Session(make_spec(), OutputText(None), on_record=[breaks])
    for number in (1, 2):
        session.draft_request(RoundPlan(1))
        assert session.commit(Proposal((11,)), Verdict(number, 1, 20, 0.5)).token_ids == (11, 20)
    assert session.stats.completion_tokens == 4


def test_why_the_target_was_alone() -> None:
    draft = Proposal((11, 12))
    _, behind, unanswered = recorded(
        (draft, Verdict(1, 2, 20, 0.1)),
        (draft, Verdict(1, 0, 21, 0.7, solo=True)),
        (Proposal(), Verdict(2, 0, 22, 0.9)),
    )
    assert behind.why_alone is WhyAlone.GATE
    assert replace(unanswered, plan=RoundPlan(2)).why_alone is WhyAlone.NO_DRAFTER
    assert replace(unanswered, plan=RoundPlan(why_alone=WhyAlone.NO_GAIN)).why_alone is WhyAlone.NO_GAIN


def test_a_drafter_that_copies_is_not_absent_where_it_has_nothing_to_copy() -> None:
    copied, behind, nothing = recorded(
        (copy := Proposal((11, 12), method=DraftMethod.SUFFIX), Verdict(1, 2, 20, 0.9)),
        (copy, Verdict(1, 0, 21, 0.9, solo=True)),
        (Proposal(method=DraftMethod.SUFFIX), Verdict(2, 0, 22, 0.9)),
    )
    assert copied.why_alone is None
    assert replace(nothing, plan=RoundPlan(2)).why_alone is WhyAlone.NO_COPY
    assert replace(behind, plan=RoundPlan(2, why_alone=WhyAlone.NO_COPY)).why_alone is WhyAlone.NO_COPY
