"""The target writes texts: those that a draft will be asked about, which no corpus has.

Without prompts an instructed model is given the opening of a user's turn alone, and asks and answers by itself (Xu et
al., "Magpie", 2024); another model begins from its first token.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from specgate.errors import InvalidArgument
from specgate.runtime.loading import eos_token_ids
from specgate_lab.train.lessons import TOP, Lessons, chunk_path, is_whole, write_tensors
from specgate_lab.train.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAD_TOKENS = 40
"""Drawn at most, so that rows of one beginning differ: a user's question, or the first words of another text."""
LEAD_TEMPERATURE = 0.8
"""Small models ask nonsense at 1."""
GREEDY_OF = 4
"""Of so many rows one is drawn; in the others the target takes its likeliest tokens."""
HELD_OUT = 10
"""Of so many prompts one begins the texts that judge the draft."""
_ANY_TEXT = "\u2063"

Beginning = tuple[int, ...]


class Openings(NamedTuple):
    """How texts begin. In a chat of the target with itself the lead is a question, and ``closing`` opens the answer."""

    beginnings: Sequence[Beginning]
    closing: Beginning = ()


def openings_of(tokenizer: "PreTrainedTokenizerBase | None", prompts: Sequence[Beginning], row_tokens: int) -> Openings:
    """Return the prompts as beginnings of texts, or where there are none how the model's own texts begin.

    Raises:
        InvalidArgument: a prompt leaves less than half of a row for the target to write, or nothing is known to begin
            with.
    """
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt) * 2 > row_tokens:
            problem = f"prompt {number} has {len(prompt)} tokens, and rows have {row_tokens}: raise --row-tokens to"
            raise InvalidArgument("prompts", f"{problem} {2 * len(prompt)} or more")
    if prompts:
        return Openings(list(dict.fromkeys(prompts)))
    if tokenizer is None:
        raise InvalidArgument("prompts", "are needed: the target has no tokenizer to begin a text with")
    own = _chat(tokenizer) if tokenizer.chat_template else _first_token(tokenizer)
    longest = max(map(len, own.beginnings)) + len(own.closing)
    if not 0 < longest * 2 <= row_tokens:
        raise InvalidArgument("prompts", f"are needed: texts would need {longest} of {row_tokens} tokens")
    return own


def _chat(tokenizer: "PreTrainedTokenizerBase") -> Openings:
    """Begin as the template does, and without what a system says: who sends text of their own may leave it out."""
    render: Any = partial(tokenizer.apply_chat_template, tokenize=False)
    turns = [{"role": role, "content": _ANY_TEXT} for role in ("user", "assistant", "user")]
    first, _, closing = str(render(turns[:1], add_generation_prompt=True)).partition(_ANY_TEXT)
    answer_ends = str(render(turns[:2])).rpartition(_ANY_TEXT)[2]
    bos = tokenizer.bos_token or ""
    later = str(render(turns)).split(_ANY_TEXT)[2].removeprefix(answer_ends)
    if first.startswith(bos) and not later.startswith(bos):
        later = bos + later
    ids = [
        tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in (*dict.fromkeys((first, later)), closing)
    ]
    return Openings([one for one in ids[:-1] if one] or _first_token(tokenizer).beginnings, ids[-1])


def _first_token(tokenizer: "PreTrainedTokenizerBase") -> Openings:
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return Openings([() if first is None else (first,)])


def write_texts(target: Any, openings: Openings, recipe: Recipe, folder: Path, on_chunk: Callable[[int], None]) -> None:
    """Let the target write what is not written yet, batch by batch; call ``on_chunk`` with how many there are.

    The last batch has beginnings that no other has, where there are several prompts.
    """
    beginnings, closing = openings
    held_out, taught = beginnings[::HELD_OUT], [one for i, one in enumerate(beginnings) if i % HELD_OUT]
    # No two questions that begin alike are the same.
    pools = (beginnings, beginnings) if closing else (taught or held_out, held_out)
    cache = _new_cache(target, recipe.row_tokens)
    for number in range(recipe.num_chunks):
        path, is_last = chunk_path(folder, number), number == recipe.num_chunks - 1
        if not is_whole(path):
            pool, first = pools[is_last], 0 if is_last else number * recipe.write_rows
            turns = range(first, first + recipe.write_rows)
            own = [pool[turn % len(pool)] for turn in turns]
            leads = torch.tensor([bool(closing) or turn >= len(pool) for turn in turns])
            seed = (recipe.seed * 1_000_003 + number) % 2**63
            lessons = write(target, Openings(own, closing), leads, recipe.row_tokens, seed, cache)
            write_tensors(path, lessons._asdict())
        on_chunk(number + 1)


@torch.inference_mode()
def write(
    target: Any, openings: Openings, leads: torch.Tensor, row_tokens: int, seed: int, cache: Any = None
) -> Lessons:
    """Go on with each beginning until a row has ``row_tokens`` tokens, the padding on its left included.

    ``leads`` [rows] bool says which ones need a lead. ``cache`` is one of as many rows and tokens, to use once more.
    """
    cache = _new_cache(target, row_tokens) if cache is None else cache
    cache.reset()
    beginnings, device, width = openings.beginnings, target.device, max(map(len, openings.beginnings))
    num = len(beginnings)
    ids = torch.zeros(num, row_tokens, dtype=torch.long, device=device)
    starts = torch.tensor([width - len(one) for one in beginnings], dtype=torch.int32)
    for row, one in enumerate(beginnings):
        ids[row, width - len(one) : width] = torch.tensor(one)
    mask = (torch.arange(row_tokens, device=device) >= starts.to(device)[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    # By chance: with rows in turns, the same prompts would always be greedy ones.
    greedy = torch.randperm(num, generator=torch.Generator().manual_seed(seed)) % GREEDY_OF != 0
    speech = _Speech(openings.closing, leads.to(device), width, row_tokens, eos_token_ids(target))
    takes_likeliest = greedy.to(device)
    top_ids = torch.zeros(num, row_tokens, TOP, dtype=torch.int32)
    top_log_probs = torch.zeros(num, row_tokens, TOP, dtype=torch.float16)
    generator = torch.Generator(device).manual_seed(seed)
    takes = inspect.signature(target.forward).parameters
    keep_last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    begin = 0
    for end in range(width, row_tokens):
        step = {"attention_mask": mask[:, :end], "position_ids": positions[:, begin:end]}
        out = target(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True, **step, **keep_last)
        log_probs = out.logits[:, -1].float().log_softmax(-1)
        top = log_probs.topk(TOP, dim=-1)
        drawn = _drawn(log_probs, speech.leads(end), generator)
        chosen = torch.where(takes_likeliest & ~speech.leads(end), top.indices[:, 0], drawn)
        top_ids[:, end], top_log_probs[:, end] = top.indices.int().cpu(), top.values.half().cpu()
        ids[:, end], begin = speech.said(chosen, end), end
    written, ends = speech.written.int().cpu(), speech.ends.int().cpu()
    return Lessons(ids.int().cpu(), starts, written, ends, greedy, top_ids, top_log_probs)


def _new_cache(target: Any, num_tokens: int) -> Any:
    """Return a cache of one size: where no place is masked, attention takes five times as long on a CPU."""
    from transformers import StaticCache

    return StaticCache(config=target.config, max_cache_len=num_tokens)


def _drawn(log_probs: torch.Tensor, leads: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a sample of each row's distribution, as multinomial would in ten times as long."""
    sums = (log_probs / torch.where(leads, LEAD_TEMPERATURE, 1.0)[:, None]).exp().cumsum(-1)
    place = torch.rand(len(sums), 1, generator=generator, device=sums.device) * sums[:, -1:]
    return torch.searchsorted(sums, place, right=True)[:, 0].clamp(max=sums.shape[1] - 1)


class _Speech:
    """Where the lead of each row ends and where its text, in which a draft learns and is judged, begins and ends."""

    def __init__(
        self, closing: Beginning, leads: torch.Tensor, width: int, row_tokens: int, end_ids: Sequence[int]
    ) -> None:
        self._closing, self._end_ids = (torch.tensor(one, device=leads.device) for one in (closing, end_ids))
        longest = min(LEAD_TOKENS, (row_tokens - width) // 2 - len(closing))
        self._lead_ends = torch.where(leads, width + longest, width)
        self.ends = torch.full_like(self._lead_ends, row_tokens)

    @property
    def written(self) -> torch.Tensor:
        """Where the text begins: int64 [rows]."""
        return self._lead_ends + len(self._closing)

    def leads(self, place: int) -> torch.Tensor:
        """Whether the token at this place is drawn for the lead: bool [rows]."""
        return self._lead_ends > place

    def said(self, token_ids: torch.Tensor, place: int) -> torch.Tensor:
        """Return which tokens stand at this place: these, or what closes a lead that ends here or ended shortly ago."""
        if len(self._closing):
            ended = self.leads(place) & (token_ids == self._closing[0])
            self._lead_ends = self._lead_ends.where(~ended, place)
            since = place - self._lead_ends
            closes = (since >= 0) & (since < len(self._closing))
            token_ids = torch.where(closes, self._closing[since.clamp(0, len(self._closing) - 1)], token_ids)
        over = (place >= self.written) & (self.ends > place) & torch.isin(token_ids, self._end_ids)
        self.ends = self.ends.where(~over, place + 1)
        return token_ids
