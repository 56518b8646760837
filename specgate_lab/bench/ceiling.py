"""The rate that a pair would have if a round were its models' work and nothing else. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

from specgate_lab.measured_stats import MeasuredStats

NO_HITS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Medians of the times that the services report, in microseconds.

    ``draft_us`` is by draft tokens, from the round's arrival to its answer. ``forward_us`` is of the target's forwards
    alone, by rows: draft tokens plus one, 1 being a token that the target decodes alone.
    """

    draft_us: Mapping[int, float] = field(default_factory=dict)
    forward_us: Mapping[int, float] = field(default_factory=dict)


def model_times(stats: Sequence[MeasuredStats], on_demand: Sequence[MeasuredStats] = ()) -> ModelTimes:
    """Return the medians over all rounds of all requests; of drafts, over those that were not ready when asked for.

    Args:
        on_demand: of requests whose drafter did not run ahead. Where a draft is shorter there it takes that: those
            that were not ready may have waited for the forward of a guess. A length that is not among them is taken
            in proportion.
    """
    lengths = [length for one in stats for length in one.draft_lengths]
    whole = [pair for one in on_demand for pair in zip(one.draft_lengths, one.draft_us, strict=True)]
    draft_us = _medians(_least_prepared(stats))
    if whole:
        missed = _medians((length, us) for length, hit, us in _drafts(stats) if not hit)
        unhurried = _in_proportion(whole, lengths)
        draft_us = {length: min(us, missed.get(length, us)) for length, us in unhurried.items()}
    return ModelTimes(draft_us, _medians(entry for one in stats for entry in one.forwards_us))


def _drafts(stats: Sequence[MeasuredStats]) -> list[tuple[int, bool, int]]:
    """Return (length, whether it was prepared, µs) of all drafts."""
    return [entry for one in stats for entry in zip(one.draft_lengths, one.prepared, one.draft_us, strict=True)]


def _least_prepared(stats: Sequence[MeasuredStats]) -> list[tuple[int, int]]:
    """Return (length, µs) of the drafts that were not prepared, and of all drafts of a length that always was."""
    rounds = _drafts(stats)
    known = {length for length, hit, _ in rounds if not hit}
    return [(length, us) for length, hit, us in rounds if not hit or length not in known]


def _in_proportion(whole: Sequence[tuple[int, int]], lengths: Iterable[int]) -> dict[int, float]:
    """Return what drafts of ``lengths`` take: a median where there is one, else so many tokens' worth."""
    known, token_us = _medians(whole), median(us / length for length, us in whole)
    return {length: known.get(length, length * token_us) for length in sorted(set(lengths))}


def ceiling_tokens_per_s(
    outcomes: Mapping[tuple[int, int], int],
    solo_tokens: int,
    times: ModelTimes,
    hit_rates: Mapping[int, float] = NO_HITS,
) -> float | None:
    """Return tokens a second with no time between the models, None where there is nothing to go by.

    A round of n draft tokens with a of them accepted brings a + 1 tokens. It takes the target's forward of n + 1 rows,
    and of the draft what is not hidden: a share ``hit_rates[n]`` of the drafts runs during the forward before it, and
    hides as much of itself as that lasts:

        round = forward[n + 1] + draft[n] - hit_rates[n] * min(draft[n], forward[n + 1])

    A solo token takes forward[1]. The ceiling is all tokens over the sum of all rounds.

    Args:
        outcomes: number of rounds by (tokens proposed, tokens accepted).
        solo_tokens: decoded with no draft.
        times: of every length in ``outcomes``, and of width 1 where there are solo tokens.
        hit_rates: share of the rounds whose draft was prepared while the round before was verified, by its length.
    """
    tokens, total_us = float(solo_tokens), solo_tokens * times.forward_us.get(1, 0.0)
    for (proposed, accepted), rounds in outcomes.items():
        draft_us, forward_us = times.draft_us[proposed], times.forward_us[proposed + 1]
        tokens += rounds * (accepted + 1)
        total_us += rounds * (forward_us + draft_us - hit_rates.get(proposed, 0.0) * min(draft_us, forward_us))
    return tokens / total_us * 1e6 if total_us else None


def ceiling_of(stats: Sequence[MeasuredStats], on_demand: Sequence[MeasuredStats] = ()) -> float | None:
    """Return the ceiling of requests as they were measured, None without any; ``on_demand`` as in ``model_times``."""
    outcomes: Counter[tuple[int, int]] = Counter()
    for one in stats:
        outcomes += one.outcomes
    rounds = Counter(length for length, _, _ in _drafts(stats))
    hits = Counter(length for length, hit, _ in _drafts(stats) if hit)
    solo_tokens = sum(one.solo_tokens for one in stats)
    hit_rates = {length: hits[length] / count for length, count in rounds.items()}
    return ceiling_tokens_per_s(outcomes, solo_tokens, model_times(stats, on_demand), hit_rates)


def _medians(pairs: Iterable[tuple[int, int]]) -> dict[int, float]:
    values: defaultdict[int, list[int]] = defaultdict(list)
    for key, value in pairs:
        values[key].append(value)
    return {key: float(median(values[key])) for key in sorted(values)}
