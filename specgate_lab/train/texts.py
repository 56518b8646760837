"""The target writes texts: those that a draft will be asked about, which no corpus has.

Without prompts an instructed model is given the opening of a user's turn alone, and asks and answers by itself (Xu et
al., "Magpie", 2024); another model begins from its first token.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specgate.errors import InvalidArgument
from specgate_lab.train.lessons import TOP, Lessons, chunk_path, is_whole, write_tensors
from specgate_lab.train.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAD_TOKENS = 32
"""Sampled in every row, so that rows of one beginning differ; then half of the rows take the likeliest tokens."""
HELD_OUT = 10
"""Of so many prompts one begins the texts that judge the draft."""
_ANY_TEXT = "\u2063"

Beginning = tuple[int, ...]


def beginnings_of(
    tokenizer: "PreTrainedTokenizerBase | None", prompts: Sequence[Beginning], row_tokens: int
) -> list[Beginning]:
    """Return what texts begin with: the prompts, or where there are none how the model's own texts begin.

    Raises:
        InvalidArgument: a prompt leaves less than half of a row for the target to write, or nothing is known to begin
            with.
    """
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt) * 2 > row_tokens:
            problem = f"prompt {number} has {len(prompt)} tokens, and rows have {row_tokens}: raise --row-tokens to"
            raise InvalidArgument("prompts", f"{problem} {2 * len(prompt)} or more")
    if prompts:
        return list(dict.fromkeys(prompts))
    if tokenizer is None:
        raise InvalidArgument("prompts", "are needed: the target has no tokenizer to begin a text with")
    beginning = _users_turn(tokenizer) or _first_token(tokenizer)
    if not 0 < len(beginning) * 2 <= row_tokens:
        raise InvalidArgument("prompts", f"are needed: texts would begin with {len(beginning)} of {row_tokens} tokens")
    return [beginning]


def _users_turn(tokenizer: "PreTrainedTokenizerBase") -> Beginning:
    if not tokenizer.chat_template:
        return ()
    turn: Any = tokenizer.apply_chat_template([{"role": "user", "content": _ANY_TEXT}], tokenize=False)
    return tuple(tokenizer(str(turn).partition(_ANY_TEXT)[0], add_special_tokens=False)["input_ids"])


def _first_token(tokenizer: "PreTrainedTokenizerBase") -> Beginning:
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return () if first is None else (first,)


def write_texts(
    target: Any, beginnings: Sequence[Beginning], recipe: Recipe, folder: Path, on_chunk: Callable[[int], None]
) -> None:
    """Let the target write what is not written yet, batch by batch; call ``on_chunk`` with how many there are.

    The last batch has beginnings that no other has, where there are several.
    """
    held_out, taught = beginnings[::HELD_OUT], [one for i, one in enumerate(beginnings) if i % HELD_OUT]
    for number in range(recipe.num_chunks):
        path = chunk_path(folder, number)
        if not is_whole(path):
            pool = held_out if number == recipe.num_chunks - 1 else taught or held_out
            first = number * recipe.write_rows
            own = [pool[(first + row) % len(pool)] for row in range(recipe.write_rows)]
            lessons = write(target, own, recipe.row_tokens, (recipe.seed * 1_000_003 + number) % 2**63)
            write_tensors(path, lessons._asdict())
        on_chunk(number + 1)


@torch.inference_mode()
def write(target: Any, beginnings: Sequence[Beginning], row_tokens: int, seed: int) -> Lessons:
    """Go on with each beginning until a row has ``row_tokens`` tokens, the padding on its left included."""
    from transformers import StaticCache

    device, width = target.device, max(map(len, beginnings))
    num = len(beginnings)
    ids = torch.zeros(num, row_tokens, dtype=torch.long, device=device)
    starts = torch.tensor([width - len(one) for one in beginnings], dtype=torch.int32)
    for row, one in enumerate(beginnings):
        ids[row, width - len(one) : width] = torch.tensor(one)
    mask = (torch.arange(row_tokens, device=device) >= starts.to(device)[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    # Half of them by chance: with rows in turns, the same prompts would always be greedy ones.
    greedy = torch.randperm(num, generator=torch.Generator().manual_seed(seed)) % 2 == 0
    kept = Lessons(
        ids.int().cpu(),
        starts,
        torch.full((num,), width, dtype=torch.int32),
        greedy,
        torch.zeros(num, row_tokens, TOP, dtype=torch.int32),
        torch.zeros(num, row_tokens, TOP, dtype=torch.float16),
        torch.zeros(num, row_tokens),
    )
    generator = torch.Generator(device).manual_seed(seed)
    takes = inspect.signature(target.forward).parameters
    keep_last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    # One that grows leaves holes in a CPU's memory; and where no place is masked attention takes five times as long.
    cache, begin = StaticCache(config=target.config, max_cache_len=row_tokens), 0
    for end in range(width, row_tokens):
        step = {"attention_mask": mask[:, :end], "position_ids": positions[:, begin:end]}
        out = target(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True, **step, **keep_last)
        log_probs = out.logits[:, -1].float().log_softmax(-1)
        # A sample, as multinomial would give in ten times as long.
        sums = log_probs.exp().cumsum(-1)
        drawn = torch.rand(num, 1, generator=generator, device=device) * sums[:, -1:]
        chosen = torch.searchsorted(sums, drawn, right=True)[:, 0].clamp(max=sums.shape[1] - 1)
        if end >= width + LEAD_TOKENS:
            chosen = torch.where(greedy.to(device), log_probs.argmax(-1), chosen)
        top = log_probs.topk(TOP, dim=-1)
        kept.top_ids[:, end], kept.top_log_probs[:, end] = top.indices.int().cpu(), top.values.half().cpu()
        kept.log_probs[:, end] = log_probs.gather(-1, chosen[:, None])[:, 0].cpu()
        ids[:, end], begin = chosen, end
    return kept._replace(ids=ids.int().cpu())
