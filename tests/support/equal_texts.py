"""Texts that must be equal, token for token, but for near ties."""

from collections.abc import Sequence

Text = Sequence[int]


def expect_equal(
    name: str, texts: Sequence[Text], expected: Sequence[Text], near_ties: Sequence[int], *, most_excused: int
) -> None:
    """Every text must be equal; one that is not must at least have met a near tie, and is shown.

    Args:
        near_ties: how many each text met.
        most_excused: how many may differ. A near tie excuses a text, not a run: they are too rare to excuse many.
    """
    pairs = list(zip(texts, expected, near_ties, strict=True))
    differing = [i for i, (text, other, _) in enumerate(pairs) if list(text) != list(other)]
    print(f"{name}: {len(pairs) - len(differing)} of {len(pairs)} equal, {sum(near_ties)} near ties met")
    assert [i for i in differing if near_ties[i] == 0] == []
    assert len(differing) <= most_excused
