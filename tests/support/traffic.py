"""Forwards of any mixture on one runner, each compared with the model's own eager forward."""

import random
from pathlib import Path

import torch

from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.scheduler import Rows
from tests.support.models import eager_logits, eager_model

Told = list[tuple[list[int], torch.Tensor]]
"""What sequences' rows were, to the last, and the logits of those that were wanted."""


class Traffic:
    """Sequences that share prefixes, grow, are cut back, branch off, end and start anew, in batches of any mixture."""

    def __init__(self, runner: ModelRunner, seed: int = 5) -> None:
        self.runner, self.dice = runner, random.Random(seed)
        self.num_shared = self.num_forks = 0
        self.sequences = [self._fresh() for _ in range(4)]

    def _tokens(self, count: int) -> list[int]:
        return [self.dice.randrange(self.runner.vocab_size) for _ in range(count)]

    def _fresh(self) -> KVSequence:
        """Most have been there before: they begin with pages of somebody else."""
        prompt = list(range(self.dice.choice([20, 40, 7]))) + self._tokens(self.dice.randint(1, 9))
        sequence = self.runner.pool.open(prompt, 128)
        self.runner.pool.attach(sequence, len(prompt) - 1)
        self.num_shared += sequence.num_cached > 0
        return sequence

    def _renewed(self, index: int) -> KVSequence:
        old, self.sequences[index] = self.sequences[index], self._fresh()
        if self.dice.random() < 0.5:
            self.runner.pool.free(self.sequences[index])
            self.sequences[index] = self.runner.pool.fork(self.sequences[index - 1])
            self.num_forks += 1
        self.runner.pool.free(old)
        return self.sequences[index]

    def step(self) -> Told:
        """Run one forward."""
        batch = [self._rows(i) for i in self.dice.sample(range(4), self.dice.randint(1, 4))]
        both = zip([rows.sequence for rows in batch], self.runner.forward(batch), strict=True)
        return [(one.token_ids[: one.num_cached], logits) for one, logits in both if len(logits)]

    def _rows(self, index: int) -> Rows:
        sequence = self.sequences[index]
        if self.dice.random() < 0.15 or len(sequence) > 110:
            sequence = self._renewed(index)
        if self.dice.random() < 0.3:
            sequence.truncate(self.dice.randint(max(1, sequence.num_stable, sequence.num_cached - 3), len(sequence)))
        if sequence.num_cached == len(sequence):
            sequence.append(self._tokens(self.dice.randint(1, 9)))
        assert self.runner.pool.extend(sequence, len(sequence))
        new = len(sequence) - sequence.num_cached
        num_rows = self.dice.choice([1, new, self.dice.randint(1, new)])
        return Rows(sequence, num_rows, self.dice.choice([0, 1, num_rows]))


@torch.inference_mode()
def compare_with_eager(runner: ModelRunner, folder: Path, tolerance: float = 1e-4) -> None:
    """Fail where logits differ, relative, or where it came to little. All are looked at when the last forward is over:
    a replay must not write over those of another.
    """
    eager, traffic = eager_model(folder), Traffic(runner)
    told = [one for _ in range(60) for one in traffic.step()]
    for token_ids, logits in told:
        own = eager_logits(eager, [token_ids])[0, -len(logits) :, : runner.vocab_size]
        assert (logits - own).norm() < tolerance * own.norm(), len(token_ids)
    assert sum(len(logits) for _, logits in told) > 80
    assert min(traffic.num_shared, traffic.num_forks) > 3
    for sequence in runner.pool.snapshot():
        runner.pool.free(sequence)
    runner.pool.check_integrity()
