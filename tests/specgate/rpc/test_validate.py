"""Token ids and sizes."""

import pytest

from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_fingerprint, check_length, check_token_ids


@pytest.mark.parametrize("ids", [(), (0,), (0, 9, 3), frozenset({9}), {4: 0.5}.keys()])
def test_ids_inside_the_vocabulary_pass(ids: frozenset[int]) -> None:
    check_token_ids("prompt_token_ids", ids, 10)


@pytest.mark.parametrize("ids", [(0, 10), (-1,), (11, 3)])
def test_the_first_id_outside_the_vocabulary_is_named(ids: tuple[int, ...]) -> None:
    wrong = next(token_id for token_id in ids if not 0 <= token_id < 10)
    with pytest.raises(InvalidArgument, match=rf"^prompt_token_ids: token id {wrong} .*\[0, 10\)"):
        check_token_ids("prompt_token_ids", ids, 10)


def test_the_length_and_its_limits_are_named() -> None:
    check_length("stop", ["a"], 0, 1)
    with pytest.raises(InvalidArgument, match=r"^stop \(length\): 2 is outside \[0, 1\]$"):
        check_length("stop", ["a", "b"], 0, 1)


def test_a_fingerprint_is_bounded() -> None:
    check_fingerprint("tokenizer_fingerprint", ["vocabulary"], ["ab"])
    with pytest.raises(InvalidArgument):
        check_fingerprint("tokenizer_fingerprint", ["v" * 5000], ["ab"])
