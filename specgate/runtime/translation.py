"""A draft of another vocabulary: its rows get the names that the target's tokenizer has for them.

Tokens that both have, byte for byte, are drafted under the target's id (token-level intersection: Timor et al., 2025,
"Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies"). A token
that only the target has is never drafted, and is read as the mean of the draft's tokens that spell it (Gee et al.,
2022, "Fast Vocabulary Transfer for Language Model Compression"). So positions, noise, grammars and penalties are the
target's own, and nothing but the model's first and last layer knows of it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specgate.errors import TokenizerMismatch, UnsupportedArchitecture
from specgate.runtime.short_head import ShortHead
from specgate.token_bytes import special_token_ids, token_bytes
from specgate.tokenizer import vocabulary_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST_SHARED = 0.5
"""Below it most of a text's tokens cannot be drafted: see ``drafter_svc.sources.strings_session``."""
_ROWS_AT_A_TIME = 1 << 14


@dataclass(frozen=True, slots=True)
class Translation:
    """Two vocabularies side by side.

    Attributes:
        num_tokens: of the target.
        share: of a text's tokens, by estimate, those that the draft can say.
        shared: the draft's id of each token that both have, by the target's id.
        spelled: the draft's ids that spell each token of the target's, by its id; none where nothing does.
    """

    num_tokens: int
    share: float
    shared: Mapping[int, int]
    spelled: Mapping[int, Sequence[int]]

    def named(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the target's ids of those of the draft's own that it has."""
        names = {own: name for name, own in self.shared.items()}
        return tuple(names[one] for one in token_ids if one in names)


def translation(
    draft: "PreTrainedTokenizerBase", target: "PreTrainedTokenizerBase", num_rows: int
) -> Translation | None:
    """Return how the target's tokens are those of a draft with so many rows; None: they have too few in common.

    Raises:
        TokenizerMismatch: a vocabulary's tokens cannot be read as bytes.
    """
    own, theirs = token_bytes(draft), token_bytes(target)
    for name, known in (("draft", own), ("target", theirs)):
        if not known:
            raise TokenizerMismatch(f"the {name}'s tokenizer differs, and is none whose tokens can be read as bytes")
    ids: dict[bytes, int] = {}
    for i, text in own.items():
        if i < num_rows:
            ids.setdefault(text, i)
    names: dict[bytes, int] = {}
    for i, text in theirs.items():
        names.setdefault(text, i)
    shared = {i: ids[text] for text, i in names.items() if text in ids}
    if (share := share_of_a_text(shared, theirs)) < LEAST_SHARED:
        return None
    shared |= special(draft, target, num_rows)
    longest = max(map(len, ids))
    spelled = {i: [shared[i]] if i in shared else spell(text, ids, longest) for i, text in theirs.items()}
    spelled |= {i: [own_id] for i, own_id in shared.items()}
    return Translation(vocabulary_size(target), share, shared, spelled)


def share_of_a_text(shared: Collection[int], texts: Mapping[int, bytes]) -> float:
    """Return how much of a text the ``shared`` tokens are.

    Vocabularies list tokens by how often they are met, and the n-th one is met about 1/n times as often as the first
    (Zipf, 1935). Single bytes stand first whatever their use, so they count where there is nothing else.
    """
    counted = sorted(i for i, text in texts.items() if len(text) > 1)
    if not counted:
        return len(shared) / len(texts)
    weights = {i: 1 / rank for rank, i in enumerate(counted, 1)}
    return sum(weight for i, weight in weights.items() if i in shared) / sum(weights.values())


def special(draft: "PreTrainedTokenizerBase", target: "PreTrainedTokenizerBase", num_rows: int) -> dict[int, int]:
    """Return the draft's ids of the target's special tokens: by their names, and of beginning and end by their use."""
    known = special_token_ids(draft)
    same = {i: known[name] for name, i in special_token_ids(target).items() if name in known}
    for use in ("bos_token_id", "eos_token_id"):
        own, theirs = getattr(draft, use), getattr(target, use)
        if own is not None and theirs is not None:
            same[theirs] = own
    return {i: own for i, own in same.items() if own < num_rows}


def spell(text: bytes, ids: Mapping[bytes, int], longest: int) -> list[int]:
    """Return the tokens that spell ``text``, each the longest that fits; a byte that is no token is passed over.

    Args:
        longest: of ``ids``, in bytes.
    """
    found, start = list[int](), 0
    while start < len(text):
        end = next((end for end in range(min(len(text), start + longest), start, -1) if text[start:end] in ids), None)
        if end is not None:
            found.append(ids[text[start:end]])
        start = end or start + 1
    return found


@torch.no_grad()
def translate(model: Any, by: Translation, kept: Sequence[int] | None = None) -> None:
    """Give a model's first and last layer the target's rows.

    Args:
        kept: the only ids of its own that it drafts, see ``short_head``.

    Raises:
        UnsupportedArchitecture: its head is no plain product.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise UnsupportedArchitecture(f"{type(model).__name__}: its head is no plain product, and cannot be translated")
    cut_to = None if kept is None else set(kept)
    drafted = {i: own for i, own in by.shared.items() if cut_to is None or own in cut_to}
    names = sorted(drafted)
    cut = ShortHead(head, names, [drafted[name] for name in names], by.num_tokens)
    model.set_input_embeddings(_embedding(model.get_input_embeddings(), by))
    model.set_output_embeddings(cut)


def _embedding(own: nn.Module, by: Translation) -> nn.Embedding:
    """Return a row for each of the target's tokens, in float32; of one that is not spelled it is zero."""
    owners = torch.tensor([i for i, tokens in by.spelled.items() for _ in tokens])
    tokens = torch.tensor([token for tokens in by.spelled.values() for token in tokens])
    counts = owners.bincount(minlength=by.num_tokens).clamp(min=1)
    rows: torch.Tensor | None = None
    for some_owners, some in zip(owners.split(_ROWS_AT_A_TIME), tokens.split(_ROWS_AT_A_TIME), strict=True):
        read = own(some).float()
        rows = torch.zeros(by.num_tokens, read.shape[-1]) if rows is None else rows
        rows.index_add_(0, some_owners, read)
    assert rows is not None
    return nn.Embedding.from_pretrained(rows.div_(counts[:, None]).to(own(tokens[:1]).dtype))
