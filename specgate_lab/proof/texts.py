"""Texts that must be equal, compared token by token; where two part, how near a tie the target was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from specgate_lab.timeline import RequestTimeline

NEAR_TIE = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.03125}
"""Two best logits this far apart or less may change places under another batch shape, by the weights' number format.

bfloat16 keeps 8 bits: between 16 and 32, where a best logit often lies, neighbouring values are 0.125 apart, and
each of the two may be off by one step. float16 keeps 11, which makes its steps an eighth of that.
"""
ROUNDING = 1e-3
"""Of a limit. Logits in few bits lie in steps: a margin may be the limit itself, give or take float32's error."""


def near_tie_limit(dtype: str) -> float:
    """Return the limit of a number format; an unknown one counts as coarse as bfloat16."""
    return NEAR_TIE.get(dtype, NEAR_TIE["bfloat16"])


def margins_of(text: RequestTimeline) -> list[float]:
    """Return the gap of the two best raw logits at each position, which is that of their log-probabilities."""
    return [entry.top[0][1] - entry.top[1][1] for entry in text.logprobs if len(entry.top) > 1]


def margin_at(text: RequestTimeline, position: int) -> float | None:
    """Return the gap at a position, None where it is not known."""
    margins = margins_of(text)
    return margins[position] if position < len(margins) else None


@dataclass(frozen=True, slots=True)
class Parting:
    """Where one text leaves the reference; ``margin`` is None where it is not known."""

    setting: str
    prompt: int
    position: int
    expected: int | None
    found: int | None
    margin: float | None
    near_tie: bool

    def __str__(self) -> str:
        place = f"prompt {self.prompt + 1}, {self.setting}: parts at token {self.position + 1}"
        margin = "" if self.margin is None else f", margin {self.margin:.2g}"
        return f"{place}, {self.found} in place of {self.expected}{margin}{', a near tie' if self.near_tie else ''}"


@dataclass(frozen=True, slots=True)
class TextComparison:
    """Texts against their references. ``tokens`` counts compared ones: none after a parting."""

    texts: int
    tokens: int
    partings: tuple[Parting, ...]
    drafted: int
    accepted: int

    @property
    def equal(self) -> int:
        return self.texts - len(self.partings)

    @property
    def unexplained(self) -> list[Parting]:
        """Those that are not at a near tie."""
        return [parting for parting in self.partings if not parting.near_tie]

    @property
    def tie_places(self) -> int:
        """Places of near ties that parted texts; one place may part many settings."""
        return len({(parting.prompt, parting.position) for parting in self.partings if parting.near_tie})

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {**asdict(self), "equal": self.equal}

    def __str__(self) -> str:
        drafts = f", {self.accepted} of {self.drafted} drafts accepted" if self.drafted else ""
        return f"{self.equal} of {self.texts} texts equal, {self.tokens} tokens compared{drafts}"


IsTie = Callable[[RequestTimeline, RequestTimeline, int], bool]
"""Whether reference and text may part at a position."""


def by_margin(limit: float) -> IsTie:
    """The reference's two best logits are ``limit`` apart or less: for greedy, whose choice is by logits alone."""

    def is_tie(reference: RequestTimeline, _: RequestTimeline, position: int) -> bool:
        margin = margin_at(reference, position)
        return (inf if margin is None else margin) <= limit * (1 + ROUNDING)

    return is_tie


def by_count(reference: RequestTimeline, text: RequestTimeline, position: int) -> bool:
    """The verifier counted a near tie there: for sampling, where noise that only the services know decides."""
    return position in reference.near_ties or position in text.near_ties


def never(reference: RequestTimeline, text: RequestTimeline, position: int) -> bool:
    """Nowhere: the bits of a batch-invariant service do not depend on what shares its forwards."""
    return False


def compare(
    references: Sequence[RequestTimeline], runs: Mapping[str, Sequence[RequestTimeline]], is_tie: IsTie
) -> TextComparison:
    """Compare every setting's texts, one a prompt, with the references, one a prompt."""
    partings: list[Parting] = []
    tokens = 0
    for setting, texts in runs.items():
        for prompt, (reference, text) in enumerate(zip(references, texts, strict=True)):
            if reference.token_ids == text.token_ids:
                tokens += len(reference.token_ids)
                continue
            partings.append(_part(setting, prompt, reference, text, is_tie))
            tokens += partings[-1].position + 1
    every = [text for texts in runs.values() for text in texts]
    return TextComparison(len(every), tokens, tuple(partings), *drafts_of(every))


def drafts_of(texts: Sequence[RequestTimeline]) -> tuple[int, int]:
    """Return how many tokens were drafted for texts, and how many of them were accepted."""
    return sum(text.stats.drafted for text in texts), sum(text.stats.accepted for text in texts)


def _part(setting: str, prompt: int, reference: RequestTimeline, text: RequestTimeline, is_tie: IsTie) -> Parting:
    pairs = zip(reference.token_ids, text.token_ids, strict=False)
    shorter = min(len(reference.token_ids), len(text.token_ids))
    position = next((i for i, (expected, found) in enumerate(pairs) if expected != found), shorter)
    expected, found = (dict(enumerate(one.token_ids)).get(position) for one in (reference, text))
    # A text that ends early chose no other token: no tie explains it.
    near_tie = None not in (expected, found) and is_tie(reference, text, position)
    return Parting(setting, prompt, position, expected, found, margin_at(reference, position), near_tie)
