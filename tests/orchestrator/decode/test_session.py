"""Where a request ends inside a verdict, and what it reads as."""

import random

import pytest

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.request import Delta
from orchestrator.decode.session import Session
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.auto.observation import Observation
from orchestrator.policy.gates import RoundPlan
from specgate.types import FinishReason, Proposal, TokenLogprobs, TokenSource, Verdict
from tests.support.decoding import PROMPT, Seen, make_session, make_spec

ACCEPTED, RECOVERED, BONUS, SOLO = (
    TokenSource.ACCEPTED,
    TokenSource.RECOVERED,
    TokenSource.BONUS,
    TokenSource.SOLO,
)


def commit(session: Session, draft: tuple[int, ...], num_accepted: int, own: int | None, **verdict: object) -> Delta:
    session.draft_request(RoundPlan(len(draft)))
    return session.commit(
        Proposal(draft, draft_us=7),
        Verdict(session.round, num_accepted, own, confidence=0.5, verify_us=11, **verdict),
    )


@pytest.mark.parametrize(
    ("draft", "num_accepted", "own", "tokens", "sources"),
    [
        ((11, 12, 13), 3, 14, (11, 12, 13, 14), (ACCEPTED, ACCEPTED, ACCEPTED, BONUS)),
        ((11, 12, 13), 1, 14, (11, 14), (ACCEPTED, RECOVERED)),
        ((11, 12, 13), 0, 14, (14,), (RECOVERED,)),
        ((), 0, 14, (14,), (SOLO,)),
    ],
    ids=["all", "some", "none", "no_proposal"],
)
def test_sources(draft, num_accepted, own, tokens, sources) -> None:
    session = make_session()
    delta = commit(session, draft, num_accepted, own)
    assert delta.token_ids == tokens
    assert delta.sources == sources
    assert session.output_token_ids == tokens
    assert session.confidence == 0.5
    assert not session.finished


@pytest.mark.parametrize(
    ("draft", "num_accepted", "fully_accepted"), [((11, 12), 2, True), ((11, 12), 1, False), ((), 0, True)]
)
def test_whether_a_draft_stood(draft: tuple[int, ...], num_accepted: int, fully_accepted: bool) -> None:
    session = make_session()
    assert session.fully_accepted
    commit(session, draft, num_accepted, 20)
    assert session.fully_accepted is fully_accepted
    session.commit(Proposal(draft), Verdict(1, 0, 21, solo=True))
    assert session.fully_accepted


def test_solo_verdict_of_a_round_with_a_proposal() -> None:
    session = make_session()
    commit(session, (11, 12), 1, 20, last=False)
    delta = session.commit(Proposal((11, 12)), Verdict(1, 0, 21, solo=True))
    assert delta.sources == (SOLO,)
    assert session.stats.drafted == 2
    assert session.stats.rounds == 1
    assert session.stats.outcomes == {(2, 1): 1}
    assert session.stats.solo_tokens == 1
    assert session.stats.target_forwards == 2
    assert len(session.stats.round_us) == 1


def test_batch_widths_are_counted_where_the_verifier_tells_them() -> None:
    session = make_session()
    for token_id, width in ((20, 3), (21, 3), (22, 1), (23, 0)):
        session.commit(Proposal(), Verdict(1, 0, token_id, batch_sessions=width))
    assert session.stats.batch_widths == {3: 2, 1: 1}


# (stop ids, max_tokens) against an accepted run of 11, 12, 13 and the bonus 14.
@pytest.mark.parametrize(
    ("stop", "max_tokens", "tokens", "reason", "accepted", "drafted"),
    [
        ({99}, 40, (11, 12, 13, 14), None, 3, 3),
        ({11}, 40, (11,), FinishReason.STOP, 1, 1),
        ({12}, 40, (11, 12), FinishReason.STOP, 2, 2),
        ({13}, 40, (11, 12, 13), FinishReason.STOP, 3, 3),
        ({14}, 40, (11, 12, 13, 14), FinishReason.STOP, 3, 3),
        ({12, 11}, 40, (11,), FinishReason.STOP, 1, 1),
        ({99}, 2, (11, 12), FinishReason.LENGTH, 2, 2),
        ({99}, 4, (11, 12, 13, 14), FinishReason.LENGTH, 3, 3),
        # Both in one token: the stop is the reason.
        ({12}, 2, (11, 12), FinishReason.STOP, 2, 2),
        ({14}, 4, (11, 12, 13, 14), FinishReason.STOP, 3, 3),
        # The stop would be after the end.
        ({13}, 2, (11, 12), FinishReason.LENGTH, 2, 2),
    ],
)
def test_end_inside_an_accepted_run(stop, max_tokens, tokens, reason, accepted, drafted) -> None:
    session = make_session(make_spec(max_tokens, frozenset(stop), logprobs=0))
    logprobs = tuple(TokenLogprobs(-float(token_id)) for token_id in (11, 12, 13, 14))
    delta = commit(session, (11, 12, 13), 3, 14, logprobs=logprobs)
    assert delta.token_ids == tokens
    assert delta.finish_reason == reason == session.finish_reason
    assert [one.logprob for one in delta.logprobs] == [-float(token_id) for token_id in tokens]
    assert len(delta.sources) == len(tokens)
    assert session.committed == [*PROMPT, *tokens]
    assert (session.stats.accepted, session.stats.drafted) == (accepted, drafted)
    assert session.stats.completion_tokens == len(tokens)


def test_end_just_after_a_rejection_counts_it() -> None:
    session = make_session(make_spec(2))
    commit(session, (11, 12, 13), 1, 20)
    assert session.finish_reason is FinishReason.LENGTH
    assert (session.stats.accepted, session.stats.drafted) == (1, 2)


def test_cut_before_a_rejection_does_not_count_it() -> None:
    session = make_session(make_spec(40, frozenset({11})))
    commit(session, (11, 12, 13), 1, 20)
    assert (session.stats.accepted, session.stats.drafted) == (1, 1)


def test_requests_follow_what_is_committed() -> None:
    session = make_session()
    first = session.draft_request(RoundPlan(3, stop_below=0.25))
    assert (first.round, first.position, first.token_ids, first.gamma, first.stop_below) == (1, 3, (), 3, 0.25)
    verify = session.verify_request(Proposal((11, 12, 13)), RoundPlan(3, 0.0, 0.5, 9))
    assert (verify.round, verify.position, verify.solo_below, verify.max_solo_tokens) == (1, 3, 0.5, 9)
    session.commit(Proposal((11, 12, 13)), Verdict(1, 2, 20, last=False))
    warm = session.keep_warm()
    assert (warm.round, warm.position, warm.token_ids, warm.gamma) == (1, 3, (11, 12, 20), 0)
    session.commit(Proposal((11, 12, 13)), Verdict(1, 0, 21, solo=True))
    second = session.draft_request(RoundPlan(2))
    assert (second.round, second.position, second.token_ids, second.gamma) == (2, 6, (21,), 2)
    assert session.verify_request(Proposal(), RoundPlan()).position == 7


def test_spec_of_this_moment_opens_another_service() -> None:
    session = make_session()
    commit(session, (11, 12), 1, 20)
    assert session.spec.output_token_ids == (11, 20)
    assert session.spec.prompt_token_ids == PROMPT
    assert session.spec.max_tokens == session.opening_spec.max_tokens
    again = Session(session.spec, OutputText(None))
    assert (again.length, again.remaining) == (session.length, session.remaining)


def test_round_time_is_from_the_draft_to_the_first_verdict() -> None:
    times = iter([1.0, 1.5, 1.6, 1.7])
    session = Session(make_spec(), OutputText(None), clock=lambda: next(times))
    session.restart_round_time()
    commit(session, (11, 12), 1, 20, last=False)
    session.commit(Proposal((11, 12)), Verdict(1, 0, 21, solo=True, verify_us=9, forward_us=5))
    session.commit(Proposal(), Verdict(1, 0, None))
    assert session.stats.round_us == [500_000]
    assert session.stats.draft_us == [7]
    assert session.stats.verify_us == [11]
    # A verifier that does not tell what the forward took; one that does; one that had nothing to say.
    assert session.stats.forwards_us == [(3, 11), (1, 5)]


def test_what_is_done_between_two_verdicts_is_of_the_later_round() -> None:
    times = iter([1.0, 1.5, 2.25])
    session = Session(make_spec(), OutputText(None), clock=lambda: next(times))
    session.restart_round_time()
    commit(session, (11, 12), 1, 20)
    commit(session, (13,), 1, 21)
    assert session.stats.round_us == [500_000, 750_000]


def test_the_observer_is_told_when_the_next_request_is_on_its_way() -> None:
    seen = Seen()
    session = Session(make_spec(), OutputText(None), observer=seen)
    commit(session, (11, 12), 1, 20)
    assert seen == []
    session.report()
    session.report()
    assert len(seen) == 1
    # Within a solo run nobody waits for it; behind the run's last token the next round does.
    session.commit(Proposal((11, 12)), Verdict(1, 0, 21, solo=True, last=False))
    assert len(seen) == 2
    session.commit(Proposal((11, 12)), Verdict(1, 0, 23, solo=True))
    assert len(seen) == 2
    commit(session, (13,), 1, 22)
    assert len(seen) == 2
    # Solo tokens stream behind this one already.
    commit(session, (14,), 1, 24, last=False)
    assert len(seen) == 5
    commit(session, (15,), 1, 25)
    session.leave()
    assert len(seen) == 6


def test_a_learner_that_breaks_is_told_that_the_session_ends() -> None:
    class Broken(Seen):
        num_left = 0

        def __call__(self, seen: Observation, /) -> None:
            raise ZeroDivisionError

        def leave(self) -> None:
            self.num_left += 1

    observer = Broken()
    session = Session(make_spec(), OutputText(None), observer=observer)
    commit(session, (11, 12), 1, 20)
    with pytest.raises(ZeroDivisionError):
        session.leave()
    assert observer.num_left == 1


def generate(tokenizer: TextTokenizer, ids: tuple[int, ...], stop: tuple[str, ...], sizes) -> tuple[Session, str]:
    """Commit ``ids`` in verdicts of the given sizes, until they end or the session does."""
    session = make_session(make_spec(len(ids)), tokenizer.incremental(), stop)
    text, left = "", ids
    for size in sizes:
        if session.finished or not left:
            break
        *draft, own = left[:size]
        text += commit(session, tuple(draft), len(draft), own).text
        left = left[size:]
    return session, text


def reference(tokenizer: TextTokenizer, ids: tuple[int, ...], stop: tuple[str, ...]) -> tuple[tuple[int, ...], str]:
    """The fewest first tokens whose text has a stop string, and their text before it; everything where none has.

    Text that ends in half a character is not looked at before its last byte is there, or nothing follows.
    """
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        found = [start for one in stop if (start := text.find(one)) >= 0]
        if found and (count == len(ids) or not text.endswith("\ufffd")):
            return ids[:count], text[: min(found)]
    return ids, tokenizer.decode(ids)


TEXT = "the fox said: END of\n\nthe story, naïve 🦊🦊. The end"


@pytest.mark.parametrize(
    "stop",
    [
        ("END",),
        ("\n\n",),
        ("fox",),
        ("t",),
        ("🦊🦊",),
        ("ï",),
        ("nothing like it",),
        ("END OF", " of"),
        ("said: END of\n\nthe story", "naïve 🦊🦊!", "end?"),
        (". The end",),
        ("x said", "ox", "fox s"),
    ],
)
@pytest.mark.parametrize(
    "sizes", [[1] * 200, [2] * 100, [3] * 100, [7] * 50, [60] * 5], ids=lambda sizes: f"by{sizes[0]}"
)
def test_stop_strings(byte_level: TextTokenizer, stop: tuple[str, ...], sizes: list[int]) -> None:
    ids = byte_level.encode(TEXT)
    session, text = generate(byte_level, ids, stop, sizes)
    expected_ids, expected_text = reference(byte_level, ids, stop)
    assert text == expected_text
    assert session.output_token_ids == expected_ids
    stopped = expected_text != TEXT
    assert session.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)


@pytest.mark.parametrize("seed", range(200))
def test_text_is_the_same_however_it_comes(byte_level: TextTokenizer, seed: int) -> None:
    """Random tokens, broken characters among them, in verdicts of random sizes."""
    rng = random.Random(seed)
    ids = tuple(rng.randrange(1, byte_level.vocab_size) for _ in range(50))
    letters = byte_level.decode(ids).replace("\ufffd", "")
    starts = [rng.randrange(len(letters)) for _ in range(2)]
    stop = tuple(letters[start : start + rng.randrange(2, 6)] for start in starts) if seed % 2 else ()
    sizes = [rng.randrange(1, 6) for _ in range(50)]
    session, text = generate(byte_level, ids, stop, sizes)
    one_by_one, same_text = generate(byte_level, ids, stop, [1] * 50)
    assert session.output_token_ids == one_by_one.output_token_ids
    assert text == same_text
    assert (session.output_token_ids, text) == reference(byte_level, ids, stop)


def test_text_is_held_back_while_it_may_be_a_stop_string(byte_level: TextTokenizer) -> None:
    session = make_session(make_spec(40), byte_level.incremental(), ("END.",))
    first = commit(session, (), 0, byte_level.encode("E")[0])
    second = commit(session, (), 0, byte_level.encode("N")[0])
    third = commit(session, (), 0, byte_level.encode("x")[0])
    assert (first.text, second.text, third.text) == ("", "", "ENx")


def test_held_back_text_is_shown_at_the_end(byte_level: TextTokenizer) -> None:
    session = make_session(make_spec(2), byte_level.incremental(), ("END.",))
    first = commit(session, (), 0, byte_level.encode("E")[0])
    second = commit(session, (), 0, byte_level.encode("N")[0])
    assert (first.text, second.text, second.finish_reason) == ("", "EN", FinishReason.LENGTH)


def test_end_of_sequence_is_a_token_without_text(byte_level: TextTokenizer) -> None:
    session = make_session(make_spec(40), byte_level.incremental(), ("END.",))
    ids = byte_level.encode("EN")
    delta = commit(session, (*ids, 0, 50), len(ids) + 2, 51)
    assert delta.token_ids == (*ids, 0)
    assert delta.text == "EN"
    assert delta.finish_reason is FinishReason.STOP


def test_stop_string_before_a_stop_token(byte_level: TextTokenizer) -> None:
    session = make_session(make_spec(40), byte_level.incremental(), ("N",))
    ids = byte_level.encode("E") + byte_level.encode("N") + byte_level.encode("x")
    delta = commit(session, (*ids, 0), len(ids) + 1, 51)
    assert delta.token_ids == ids[:2]
    assert delta.text == "E"
    assert delta.finish_reason is FinishReason.STOP


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert commit(make_session(), (11, 12), 2, 13).text == ""
