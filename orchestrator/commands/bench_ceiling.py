"""The rate that a pair would have if a round were its models' work and nothing else. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from orchestrator.request import GenerationStats


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Medians of what the services told, in microseconds.

    ``draft_us`` is by draft tokens, ``verify_us`` by rows of the target's forward: draft tokens plus one, 1 being a
    token that the target decodes alone.
    """

    draft_us: Mapping[int, float] = field(default_factory=dict)
    verify_us: Mapping[int, float] = field(default_factory=dict)


def model_times(stats: Sequence[GenerationStats]) -> ModelTimes:
    """Return the medians over all rounds of all requests; of drafts, over those that were not prepared."""
    lengths = [length for one in stats for length in one.draft_lengths]
    prepared = [hit for one in stats for hit in one.prepared]
    rounds = list(zip(lengths, prepared, (us for one in stats for us in one.draft_us), strict=True))
    drafts = [(length, us) for length, hit, us in rounds if not hit]
    # Of a length that was always prepared there is nothing but what was left of it.
    known = {length for length, _ in drafts}
    drafts += [(length, us) for length, _, us in rounds if length not in known]
    widths = zip((length + 1 for length in lengths), (us for one in stats for us in one.verify_us), strict=True)
    alone = ((1, us) for one in stats for us in one.solo_us)
    return ModelTimes(_medians(drafts), _medians([*widths, *alone]))


def ceiling_tokens_per_s(
    outcomes: Mapping[tuple[int, int], int], solo_tokens: int, times: ModelTimes, hit_rate: float = 0.0
) -> float | None:
    """Return tokens a second with no time between the models, None where there is nothing to go by.

    A round of n draft tokens with a of them accepted brings a + 1 tokens. It takes the verification of n + 1 rows, and
    of the draft what is not hidden: a share ``hit_rate`` of the drafts runs while the verification before it does, and
    hides as much of itself as that lasts:

        round = verify[n + 1] + draft[n] - hit_rate * min(draft[n], verify[n + 1])

    A solo token takes verify[1]. The ceiling is all tokens over the sum of all rounds.

    Args:
        outcomes: number of rounds by (tokens proposed, tokens accepted).
        solo_tokens: decoded with no draft.
        times: of every length in ``outcomes``, and of width 1 where there are solo tokens.
        hit_rate: share of the rounds whose draft was prepared while the round before was verified.
    """
    tokens, total_us = float(solo_tokens), solo_tokens * times.verify_us.get(1, 0.0)
    for (proposed, accepted), rounds in outcomes.items():
        draft_us, verify_us = times.draft_us[proposed], times.verify_us[proposed + 1]
        tokens += rounds * (accepted + 1)
        total_us += rounds * (verify_us + draft_us - hit_rate * min(draft_us, verify_us))
    return tokens / total_us * 1e6 if total_us else None


def ceiling_of(stats: Sequence[GenerationStats]) -> float | None:
    """Return the ceiling of requests as they were measured, None without any."""
    outcomes: Counter[tuple[int, int]] = Counter()
    for one in stats:
        outcomes += one.outcomes
    rounds, hits = sum(one.rounds for one in stats), sum(sum(one.prepared) for one in stats)
    solo_tokens = sum(one.solo_tokens for one in stats)
    return ceiling_tokens_per_s(outcomes, solo_tokens, model_times(stats), hits / rounds if rounds else 0.0)


def _medians(pairs: Iterable[tuple[int, int]]) -> dict[int, float]:
    values: defaultdict[int, list[int]] = defaultdict(list)
    for key, value in pairs:
        values[key].append(value)
    return {key: float(median(values[key])) for key in sorted(values)}
