"""Where the tokenizer of a verifier's model is found: a verifier tells a name, and no path."""

from types import MappingProxyType

from orchestrator.services.discovery import tokenizer_of
from specgate.tokenizer import fingerprint, load_tokenizer
from tests.support.fake_services import model_info
from tests.support.services import PAIR

KNOWN = str(PAIR / "target")


def test_it_is_the_one_that_is_known_where_the_fingerprints_are_the_same() -> None:
    tokenizer = load_tokenizer(KNOWN)
    assert tokenizer is not None
    same = model_info("verifier", tokenizer_fingerprint=MappingProxyType(fingerprint(tokenizer)))
    found = tokenizer_of(same, KNOWN)
    assert found is not None
    assert found.encode("def f") == tuple(tokenizer("def f")["input_ids"])


def test_no_other_one_is_taken() -> None:
    """Nor a folder here, whatever a verifier calls its model."""
    for name in ("fake-verifier", KNOWN, "."):
        other = model_info("verifier", model=name, tokenizer_fingerprint=MappingProxyType({"vocabulary": "other"}))
        assert tokenizer_of(other, KNOWN) is None
    assert tokenizer_of(model_info("verifier", tokenizer_fingerprint=MappingProxyType({})), KNOWN) is None
