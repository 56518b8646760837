"""Checks of what arrives. They know no protobuf, so that the APIs can use them too."""

from collections.abc import Collection

from specgate.errors import InvalidArgument
from specgate.types import check_range

MAX_SEQUENCE_TOKENS = 1 << 22
"""No list of token ids is longer; the model's own context length is the service's to check."""
MAX_TEXT = 4096
"""Characters in a name, a token or a digest."""
MAX_COMPONENTS = 32
"""Entries in a tokenizer fingerprint."""


def check_length(field: str, items: Collection[object], low: int, high: int) -> None:
    """Raise InvalidArgument unless ``items`` has ``low`` to ``high`` entries (characters, for text)."""
    if not low <= len(items) <= high:
        check_range(f"{field} (length)", len(items), low, high)


def check_token_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    """Raise InvalidArgument, naming the first offender, unless every id is in ``[0, vocab_size)``."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise InvalidArgument(field, f"token id {wrong} is outside the vocabulary [0, {vocab_size})")


def check_fingerprint(field: str, components: Collection[str], digests: Collection[str]) -> None:
    """Raise InvalidArgument where a tokenizer fingerprint has too many components or a text is too long."""
    check_length(field, components, 0, MAX_COMPONENTS)
    for text in (*components, *digests):
        check_length(field, text, 0, MAX_TEXT)
