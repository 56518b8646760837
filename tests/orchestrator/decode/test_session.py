"""Where a request ends inside a verdict, and what it reads as."""

import random

import pytest

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.request import Delta
from orchestrator.decode.session import Session
from orchestrator.decode.text import TextTokenizer
from specgate.types import DraftMethod, FinishReason, Proposal, RoundPlan, TokenLogprobs, TokenSource, Verdict
from tests.support.decoding import PROMPT, make_session, make_spec

ACCEPTED, RECOVERED = TokenSource.ACCEPTED, TokenSource.RECOVERED
BONUS, SOLO = TokenSource.BONUS, TokenSource.SOLO


def commit(session: Session, draft: tuple[int, ...], num_accepted: int, own: int | None, **verdict: object) -> Delta:
    session.draft_request(RoundPlan(len(draft)))
    return session.commit(
        Proposal(draft, draft_us=7),
        Verdict(session.round, num_accepted, own, confidence=0.5, verify_us=11, **verdict),
    )


@pytest.mark.parametrize(
    ("draft", "num_accepted", "tokens", "sources"),
    [
        ((11, 12, 13), 3, (11, 12, 13, 20), (ACCEPTED, ACCEPTED, ACCEPTED, BONUS)),
        ((11, 12, 13), 1, (11, 20), (ACCEPTED, RECOVERED)),
        ((11, 12, 13), 0, (20,), (RECOVERED,)),
        ((), 0, (20,), (SOLO,)),
    ],
    ids=["all", "some", "none", "no_proposal"],
)
def test_a_verdict_is_taken_over(draft, num_accepted, tokens, sources) -> None:
    session = make_session()
    delta = commit(session, draft, num_accepted, 20)
    assert (delta.token_ids, delta.sources, delta.text) == (tokens, sources, "")
    assert (session.output_token_ids, session.confidence, session.finished) == (tokens, 0.5, False)


@pytest.mark.parametrize(
    ("stop", "max_tokens", "num_accepted", "tokens", "reason", "accepted", "drafted"),
    [
        ({99}, 40, 3, (11, 12, 13, 14), None, 3, 3),
        ({11}, 40, 3, (11,), FinishReason.STOP, 1, 1),
        ({12}, 40, 3, (11, 12), FinishReason.STOP, 2, 2),
        ({13}, 40, 3, (11, 12, 13), FinishReason.STOP, 3, 3),
        ({14}, 40, 3, (11, 12, 13, 14), FinishReason.STOP, 3, 3),
        ({12, 11}, 40, 3, (11,), FinishReason.STOP, 1, 1),
        ({99}, 2, 3, (11, 12), FinishReason.LENGTH, 2, 2),
        ({99}, 4, 3, (11, 12, 13, 14), FinishReason.LENGTH, 3, 3),
        # Both in one token: the stop is the reason.
        ({12}, 2, 3, (11, 12), FinishReason.STOP, 2, 2),
        ({14}, 4, 3, (11, 12, 13, 14), FinishReason.STOP, 3, 3),
        # The stop would be after the end.
        ({13}, 2, 3, (11, 12), FinishReason.LENGTH, 2, 2),
        # Just after a rejection, which counts; and before one, which does not.
        ({99}, 2, 1, (11, 14), FinishReason.LENGTH, 1, 2),
        ({11}, 40, 1, (11,), FinishReason.STOP, 1, 1),
    ],
)
def test_end_inside_a_verdict(stop, max_tokens, num_accepted, tokens, reason, accepted, drafted) -> None:
    session = make_session(make_spec(max_tokens, frozenset(stop), logprobs=0))
    logprobs = tuple(TokenLogprobs(-float(token_id)) for token_id in (*(11, 12, 13)[:num_accepted], 14))
    delta = commit(session, (11, 12, 13), num_accepted, 14, logprobs=logprobs)
    assert delta.token_ids == tokens
    assert delta.finish_reason == reason == session.finish_reason
    assert [one.logprob for one in delta.logprobs] == [-float(token_id) for token_id in tokens]
    assert len(delta.sources) == len(tokens)
    assert session.committed == [*PROMPT, *tokens]
    assert (session.stats.accepted, session.stats.drafted) == (accepted, drafted)
    assert session.stats.completion_tokens == len(tokens)


def test_spec_of_this_moment_opens_another_service() -> None:
    session = make_session()
    commit(session, (11, 12), 1, 20)
    spec = session.spec
    assert (spec.prompt_token_ids, spec.output_token_ids, spec.max_tokens) == (PROMPT, (11, 20), 40)
    again = make_session(spec)
    assert (again.length, again.remaining) == (session.length, session.remaining)


def test_round_time_is_from_the_draft_or_the_verdict_before_to_the_first_verdict() -> None:
    times = iter([1.0, 1.5, 1.6, 1.7, 2.45])
    session = Session(make_spec(), OutputText(None), clock=lambda: next(times))
    session.restart_round_time()
    commit(session, (11, 12), 1, 20, last=False)
    session.commit(Proposal((11, 12)), Verdict(1, 0, 21, solo=True, verify_us=9, forward_us=5))
    session.commit(Proposal(), Verdict(1, 0, None))
    commit(session, (13,), 1, 22)
    assert session.stats.round_us == pytest.approx([500_000, 750_000], abs=1)
    assert (session.stats.draft_us, session.stats.verify_us) == ([7, 7], [11, 11])


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
STOPS: list[tuple[str, ...]] = [("END",), ("\n\n",), ("t",), ("🦊🦊",), ("ï",), ("nothing like it",), (". The end",)]
MORE_STOPS = [("END OF", " of"), ("naïve 🦊🦊!", "end?", "END of\n\nthe story"), ("x said", "ox", "fox s")]


@pytest.mark.parametrize("stop", STOPS + MORE_STOPS)
def test_stop_strings(byte_level: TextTokenizer, stop: tuple[str, ...]) -> None:
    ids = byte_level.encode(TEXT)
    for size in (1, 2, 3, 7, 60):
        session, text = generate(byte_level, ids, stop, [size] * len(ids))
        assert (session.output_token_ids, text) == reference(byte_level, ids, stop), size
        assert session.finish_reason is (FinishReason.LENGTH if text == TEXT else FinishReason.STOP), size


def test_text_is_the_same_however_it_comes(byte_level: TextTokenizer) -> None:
    """Random tokens, broken characters among them, in verdicts of random sizes."""
    for seed in range(200):
        rng = random.Random(seed)
        ids = tuple(rng.randrange(1, byte_level.vocab_size) for _ in range(50))
        letters = byte_level.decode(ids).replace("\ufffd", "")
        starts = [rng.randrange(len(letters)) for _ in range(2)]
        stop = tuple(letters[start : start + rng.randrange(2, 6)] for start in starts) if seed % 2 else ()
        expected = reference(byte_level, ids, stop)
        for sizes in ([rng.randrange(1, 6) for _ in range(50)], [1] * 50):
            session, text = generate(byte_level, ids, stop, sizes)
            assert (session.output_token_ids, text) == expected, seed


@pytest.mark.parametrize(
    ("stop", "tokens", "max_tokens", "texts", "reason"),
    [
        ("END.", ["E", "N", "x"], 40, ["", "", "ENx"], None),
        ("END.", ["E", "N"], 2, ["", "EN"], FinishReason.LENGTH),
        # The end of sequence is a token without text.
        ("END.", ["E", "N", 0], 40, ["", "", "EN"], FinishReason.STOP),
        ("N", ["E", "N"], 40, ["E", ""], FinishReason.STOP),
    ],
    ids=["no_stop_string", "length", "end_of_sequence", "stop_string"],
)
def test_text_is_held_back_while_it_may_be_a_stop_string(
    byte_level: TextTokenizer, stop: str, tokens: list[str | int], max_tokens: int, texts: list[str], reason
) -> None:
    ids = [token if isinstance(token, int) else byte_level.encode(token)[0] for token in tokens]
    session = make_session(make_spec(max_tokens), byte_level.incremental(), (stop,))
    assert [commit(session, (), 0, token_id).text for token_id in ids] == texts
    assert session.finish_reason is reason
    # In one verdict, with more behind it, it reads the same.
    session = make_session(make_spec(max_tokens), byte_level.incremental(), (stop,))
    behind = () if reason is None else (50, 51)
    delta = commit(session, (*ids, *behind), len(ids) + len(behind), None)
    assert (delta.token_ids, delta.text, delta.finish_reason) == (tuple(ids), "".join(texts), reason)


@pytest.mark.parametrize(("method", "source"), [
    (DraftMethod.MODEL, TokenSource.ACCEPTED),
    (DraftMethod.LAYER_SKIP, TokenSource.ACCEPTED_LAYER_SKIP),
    (DraftMethod.SUFFIX, TokenSource.ACCEPTED_SUFFIX),
])  # fmt: skip
def test_who_drafted_an_accepted_token_is_told(method: DraftMethod, source: TokenSource) -> None:
    session = make_session()
    session.draft_request(RoundPlan(2))
    delta = session.commit(Proposal((8, 9), method=method), Verdict(session.round, 1, 20, confidence=0.5))
    assert delta.sources == (source, RECOVERED)
    assert session.stats.accepted_by == {method: 1}
