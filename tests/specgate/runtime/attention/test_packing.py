"""What reaches the device in one copy, and where padding goes."""

import numpy as np
import torch

from specgate.runtime.attention.packing import Layout, pack, unpack
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.scheduler import Rows

PAGE_SIZE, SCRATCH = 4, 9


def sequence(length: int, num_cached: int, block_table: list[int]) -> KVSequence:
    made = KVSequence(range(100, 100 + length))
    made.num_cached, made.block_table = num_cached, block_table
    return made


def test_padding_stands_before_a_sequences_rows_and_writes_to_the_scratch_page() -> None:
    batch, layout = [Rows(sequence(6, 3, [7, 2]), 3, 1), Rows(sequence(1, 0, [5]), 1, 1)], Layout((4, 4, 4), 2)
    words, num_kept = pack(batch, layout, PAGE_SIZE, SCRATCH, pinned=False)
    to_scratch = SCRATCH * PAGE_SIZE
    parts = unpack(words, layout, torch.int32)
    assert {name: part.tolist() for name, part in parts._asdict().items()} == {
        "token_ids": [0, 103, 104, 105, 0, 0, 0, 100, 0, 0, 0, 0],
        "positions": [2, 3, 4, 5, *[0] * 8],
        "slots": [to_scratch, 31, 8, 9, *[to_scratch] * 3, 20, *[to_scratch] * 4],
        "keep": [3, 7, *[0] * 10],
        "cu_seq_q": [0, 4, 8, 12],
        "cu_seq_k": [0, 6, 7, 8],
        "seqused_k": [6, 1, 1],
        "block_table": [[7, 2], [5, SCRATCH], [SCRATCH, SCRATCH]],
    }
    assert num_kept == 2


def test_spare_rows_are_padding_that_no_sequence_owns() -> None:
    batch, layout = [Rows(sequence(6, 3, [7, 2]), 3, 1), Rows(sequence(1, 0, [5]), 1, 1)], Layout((3, 1, 0), 2, spare=2)
    words, num_kept = pack(batch, layout, PAGE_SIZE, SCRATCH, pinned=False)
    to_scratch = SCRATCH * PAGE_SIZE
    parts = unpack(words, layout, torch.int32)
    assert {name: part.tolist() for name, part in parts._asdict().items()} == {
        "token_ids": [103, 104, 105, 100, 0, 0],
        "positions": [3, 4, 5, 0, 0, 0],
        "slots": [31, 8, 9, 20, to_scratch, to_scratch],
        "keep": [2, 3, *[0] * 4],
        "cu_seq_q": [0, 3, 4, 4],
        "cu_seq_k": [0, 6, 7, 8],
        "seqused_k": [6, 1, 1],
        "block_table": [[7, 2], [5, SCRATCH], [SCRATCH, SCRATCH]],
    }
    assert num_kept == 2


def test_the_parts_cover_the_words_and_overlap_nowhere() -> None:
    for layout in (Layout((1,), 1), Layout((3, 1), 3), Layout((4,) * 5, 7)):
        words = np.zeros(layout.num_words, dtype=np.int64)
        for value, part in enumerate(unpack(words, layout, np.int32), 1):
            assert not part.any()
            part.fill(value)
        assert 0 <= words.nbytes - sum(part.nbytes for part in unpack(words, layout, np.int32)) <= 4
