"""A draft by strings: what the draft model says after the text, in the target's tokens, round after round."""

from random import Random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from drafter_svc.sources.retokenized import TokenizerPair
from drafter_svc.sources.strings_session import StringsSession
from specgate.errors import OutOfSync
from specgate.types import DraftRequest, Proposal, SamplingParams, Verification
from tests.support.letters import write_letters
from tests.support.models import KnownModel, run_task
from tests.support.sessions import make_spec

OWN, THEIRS = "hgfedcba", "abcdefij"
MODEL = KnownModel(len(OWN), seed=3, gain=3.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TokenizerPair:
    folders = [write_letters(tmp_path_factory.mktemp(letters), letters) for letters in (OWN, THEIRS)]
    return TokenizerPair(*map(PreTrainedTokenizerFast.from_pretrained, folders))


def session_of(pair: TokenizerPair, prompt: str = "abcab", context_length: int = 256, **fields: Any) -> StringsSession:
    ids = tuple(map(THEIRS.index, prompt))
    return StringsSession(make_spec(prompt_token_ids=ids, **fields), MODEL.pool, len(OWN), context_length, pair)


def expected(text: str, gamma: int, last: int = 1000) -> str:
    """What the model says after a text, up to the first letter that the target has not."""
    own, said = [OWN.index(letter) for letter in text if letter in OWN][-last:], ""
    while len(said) < gamma:
        own.append(int(MODEL.logits(own).argmax()))
        if OWN[own[-1]] not in THEIRS:
            break
        said += OWN[own[-1]]
    return said


def ask(session: StringsSession, committed: str, at: int, number: int, gamma: int = 4, **fields: float) -> Proposal:
    ids = tuple(map(THEIRS.index, committed))
    return run_task(MODEL, session.draft(DraftRequest(number, at, ids, gamma, **fields)))


def test_it_says_what_the_model_says_whatever_the_target_commits(pair: TokenizerPair) -> None:
    random, text, lengths = Random(1), "abcab", set()
    session = session_of(pair, text)
    for number in range(30):
        said = ask(session, "", len(text), number)
        letters = "".join(THEIRS[i] for i in said.draft_token_ids)
        # Of what was drafted the last token may still change, and is left out where it is not the only one.
        assert letters == expected(text, 4)[: len(letters)]
        lengths.add(len(letters))
        committed = letters[: random.randint(0, len(letters))] + random.choice(THEIRS)
        ask(session, committed, len(text), number, gamma=0)
        text += committed
    assert max(lengths) > 2


def test_a_text_that_is_too_long_is_followed_by_its_end(pair: TokenizerPair) -> None:
    session = session_of(pair, "abc" * 5, context_length=16)
    said = "".join(THEIRS[i] for i in ask(session, "", 15, 0).draft_token_ids)
    assert said == expected("abc" * 5, 4, last=8)[: len(said)]
    assert said


def test_rejection_gets_certain_tokens_and_an_unsure_draft_ends(pair: TokenizerPair) -> None:
    said = ask(session_of(pair, "abcabbb"), "", 7, 0, stop_below=0.0)
    certain = session_of(pair, "abcabbb", verification=Verification.REJECTION, sampling=SamplingParams())
    assert ask(certain, "", 7, 0) == said.as_certain()
    assert said
    short = ask(session_of(pair, "abcabbb"), "", 7, 0, stop_below=1.0)
    assert short.draft_token_ids == said.draft_token_ids[:1]
    assert 0 < short.draft_confidences[0] < 1


def test_rounds_stay_in_step(pair: TokenizerPair) -> None:
    session = session_of(pair)
    with pytest.raises(OutOfSync):
        ask(session, "a", 4, 0)
    session.free()
