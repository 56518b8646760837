"""The tokens that a session's grammar allows, position by position, and the grammars that a service has compiled.

A ``GrammarState`` is a function of the tokens that it is asked about: what is in between (drafts that were rejected,
branches of run-ahead) leaves nothing behind. Rows are bits on the host, since they are made there: some ten
microseconds each, and milliseconds where a grammar meets a part of itself for the first time.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specgate.errors import InvalidArgument
from specgate.grammar import compiled, limits, problem_of
from specgate.tokenizer import load_tokenizer, vocabulary_size
from specgate.types import Grammar, SessionSpec, common_prefix_length

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 64
"""Grammars that a service remembers; what was not used for longest goes first."""
_END = "<|end of answer|>"
"""Stands for the end in the library's own vocabulary. Which tokens end an answer is the session's to say."""


class GrammarState:
    """One session's place in its grammar. All calls come from one thread.

    Args:
        matcher: at the beginning, of this session alone.
        pristine: one that stays there.
        end_token_ids: what may follow a complete answer. Without any, it ends where nothing can be added.
        vocab_size: ids from here on are never allowed.
        tokenizer: nor are ids, unless they are end tokens, that it has no text for.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        pristine: "LLMatcher",
        end_token_ids: Collection[int],
        vocab_size: int,
        tokenizer: "LLTokenizer",
    ) -> None:
        self.num_known = 0
        """Rows that could be made in the last call; later rows allow everything."""
        self.error = ""
        """Why no more were."""
        self._matcher = matcher
        self._pristine = pristine
        self._end = sum(1 << token_id for token_id in end_token_ids)
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        # A model may have more rows than its tokenizer has ids; the first of the rest is the library's end.
        self._num_texts = min(vocab_size, tokenizer.eos_token)
        self._texts = (1 << self._num_texts) - 1
        self._is_lost = False
        self._committed: list[int] = []
        self._behind: list[int] = []
        """Tokens that the matcher has read after the committed ones."""

    def commit(self, token_ids: Sequence[int]) -> int | None:
        """Take tokens over for good. Return after how many of them the answer is complete where no token has to say so;
        None: it goes on, or an end token ends it. What cannot follow, as an end token, and what is behind it is left.
        """
        if not self._end:
            for count in range(1, len(token_ids) + 1):
                if self._read(token_ids[:count]) == count and self._row() == 0 and self._matcher.is_accepting():
                    return count
        if self._read(token_ids) < len(token_ids):
            self._lose(self._matcher.get_error() or "the tokens before do not follow the grammar")
        self._committed += token_ids
        self._behind = []
        return None

    def num_following(self, token_ids: Sequence[int], behind: Sequence[int] = ()) -> int:
        """Return how many of these tokens the grammar allows after the committed ones and ``behind``."""
        return max(0, self._read([*behind, *token_ids]) - len(behind))

    def allowed(self, draft: Sequence[int], behind: Sequence[int] = ()) -> torch.Tensor:
        """Return uint8 [len(draft) + 1, bytes], a bit a token: what may follow the committed tokens, ``behind`` and
        ``draft[:i]``. A row after a token that is not allowed is never asked for and allows everything. So does a row
        that cannot be made, see ``num_known``, and the row after a complete answer.
        """
        num_bytes = (self._vocab_size + 7) // 8
        rows = bytearray(b"\xff" * num_bytes * (len(draft) + 1))
        self.num_known = 0 if self._is_lost else len(draft) + 1
        for i in range(self.num_known):
            prefix = [*behind, *draft[:i]]
            if self._read(prefix) < len(prefix) and not self._matcher.is_error():
                break
            row = self._row()
            if row:
                rows[i * num_bytes : (i + 1) * num_bytes] = row.to_bytes(num_bytes, "little")
            elif self._matcher.is_error() or not self._matcher.is_accepting():
                self.num_known = i
                self.error = problem_of(self._matcher.get_error() or "no token can follow")
                if not prefix:
                    self._lose(self.error)
                break
        return torch.frombuffer(rows, dtype=torch.uint8).view(len(draft) + 1, num_bytes)

    def _row(self) -> int:
        """Return what may follow what was read, as one number."""
        if self._matcher.is_error():
            return 0
        bits = int.from_bytes(self._matcher.compute_bitmask(), "little")
        if self._matcher.is_accepting():
            return bits & self._texts | self._end
        return self._in_text(bits) & self._texts

    def _in_text(self, bits: int) -> int:
        """Return the row, with a special token's name spelled by other tokens where a text is wanted: of a text without
        alternatives the library allows the tokenizer's own spelling alone, and there it refuses to read that token.
        """
        only = bits.bit_length() - 1
        if bits.bit_count() != 1 or not self._tokenizer.is_special_token(only) or self._matcher.validate_tokens([only]):
            return bits
        return 1 << self._tokenizer.greedy_tokenize(self._tokenizer.decode_str([only]))[0]

    def _read(self, token_ids: Sequence[int]) -> int:
        """Bring the matcher to the end of the committed tokens and these; return how many of them it took."""
        if self._matcher.is_error() and not self._is_lost:
            self._recover()
        kept = common_prefix_length(self._behind, token_ids)
        if kept < len(self._behind):
            self._matcher.rollback(len(self._behind) - kept)
            del self._behind[kept:]
        more = token_ids[kept:]
        known = next((i for i, one in enumerate(more) if one >= self._num_texts), len(more))
        num_read = self._matcher.try_consume_tokens(list(more[:known]))
        self._behind += more[:num_read]
        return kept + num_read

    def _lose(self, error: str) -> None:
        """Allow everything from now on: the committed tokens do not follow the grammar."""
        self._is_lost, self.error = True, problem_of(error)

    def _recover(self) -> None:
        """Start again from the committed tokens: a draft may pass a limit that the answer never meets."""
        self._matcher, self._behind = self._pristine.deep_copy(), []
        self._matcher.try_consume_tokens(self._committed)


class Grammars:
    """The grammars that a service has compiled for its model's tokenizer. Not for an engine's thread, nor for an event
    loop: one takes milliseconds, at the worst a second. One call at a time.

    Args:
        model: a folder, a hub id or a GGUF file.
        check: raises InvalidArgument for what must not be compiled here; without one everything is.
        tokenizer_of_file: see ``load_tokenizer``.
    """

    def __init__(
        self,
        model: str,
        check: Callable[[Grammar], Grammar] = lambda grammar: grammar,
        tokenizer_of_file: str | None = None,
    ) -> None:
        self._model, self._tokenizer_of_file = model, tokenizer_of_file
        self._check = check
        self._tokenizer: LLTokenizer | None = None
        self._eos_token_id: int | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def prepare(self) -> None:
        """Read the tokenizer. Before a service serves: for up to a second no other thread of the interpreter runs.

        Raises:
            InvalidArgument: there is none that a grammar could be used with.
        """
        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer()

    def state(self, spec: SessionSpec, vocab_size: int) -> GrammarState:
        """Return the state after the tokens that were emitted already.

        Raises:
            InvalidArgument: the grammar cannot be used, the model has no tokenizer for it, or what was emitted does not
                follow it.
        """
        assert spec.grammar is not None
        pristine = self._matcher(spec.grammar)
        assert self._tokenizer is not None
        end_token_ids = self._end_token_ids(spec, vocab_size)
        state = GrammarState(pristine.deep_copy(), pristine, end_token_ids, vocab_size, self._tokenizer)
        output = spec.output_token_ids
        if state.num_following(output) < len(output) or state.commit(output) is not None:
            raise InvalidArgument("output_token_ids", "do not follow the grammar, or complete it")
        return state

    def _matcher(self, grammar: Grammar) -> "LLMatcher":
        self.prepare()
        assert self._tokenizer is not None
        from llguidance import LLMatcher

        if grammar not in self._compiled:
            self._check(grammar)
            matcher = LLMatcher(self._tokenizer, compiled(grammar), log_level=0, limits=limits())
            if matcher.is_error():
                raise InvalidArgument(f"grammar.{grammar.kind}", problem_of(matcher.get_error()))
            self._compiled[grammar] = matcher
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return self._compiled[grammar]

    def _read_tokenizer(self) -> "LLTokenizer":
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise InvalidArgument("grammar", "needs the package llguidance, which is not installed here") from None
        tokenizer = load_tokenizer(self._model, self._tokenizer_of_file)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if tokenizer is None or backend is None:
            raise InvalidArgument("grammar", "needs a fast tokenizer of HuggingFace's, which the model does not have")
        end = vocabulary_size(tokenizer)
        described: dict[str, Any] = json.loads(backend.to_str())
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        described["added_tokens"].append({"id": end, "content": _END, "special": True, **flags})
        described.update(padding=None, truncation=None)
        self._eos_token_id = tokenizer.eos_token_id
        try:
            return LLTokenizer(json.dumps(described), eos_token=end)
        except ValueError as error:
            raise InvalidArgument("grammar", f"cannot be used with the model's tokenizer: {error}") from None

    def _end_token_ids(self, spec: SessionSpec, vocab_size: int) -> list[int]:
        """Return the stop tokens that end an answer: not those that are text, which may be a part of one."""
        assert self._tokenizer is not None
        known = [token_id for token_id in spec.stop_token_ids if token_id < vocab_size]
        return [i for i in known if i == self._eos_token_id or self._tokenizer.is_special_token(i)]
