"""Text at the edge of the system: a HuggingFace tokenizer, and decoding one token at a time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from specgate.errors import InvalidArgument
from specgate.tokenizer import fingerprint, load_tokenizer, vocabulary_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
SPELLED_REPLACEMENTS = (REPLACEMENT, "ï¿½", "<0xEF><0xBF><0xBD>")
"""How vocabularies spell that character itself: as it is, as bytes of byte-level BPE, as tokens of one byte each."""
MAX_CHARACTER_TOKENS = 4
"""A character has up to four bytes in UTF-8, and each of them may be a token of its own."""


class TextTokenizer:
    """A model's tokenizer. All ids are the model's own."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, path: str, of_file: str | None = None) -> Self | None:
        """Return the tokenizer of the model at ``path``, None for a folder that has none. See ``load_tokenizer``.

        Raises:
            ModelLoadError: there is no such model, or its tokenizer cannot be read.
        """
        tokenizer = load_tokenizer(path, of_file)
        return None if tokenizer is None else cls(tokenizer)

    @property
    def vocab_size(self) -> int:
        return vocabulary_size(self._tokenizer)

    @property
    def eos_token_id(self) -> int | None:
        token_id: int | None = self._tokenizer.eos_token_id
        return token_id

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """One digest a component, see ``specgate.tokenizer``."""
        return fingerprint(self._tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the ids of ``text``; with the special tokens that the tokenizer puts around a text by itself."""
        return tuple(self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``, by default without special tokens, and not tidied up."""
        flags = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(list(token_ids), **flags))

    def prompt_text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of a prompt, without an unfinished character at its end: that is the completion's."""
        completion = self.incremental(token_ids, skip_special_tokens=skip_special_tokens)
        return self.decode(token_ids[: completion.num_prompt_read], skip_special_tokens=skip_special_tokens)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return the tokens as the vocabulary has them."""
        return [str(token) for token in self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    def info(self) -> dict[str, Any]:
        """Return what a client needs to imitate the tokenizer: its class, special tokens and chat template. No path."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        return {"tokenizer_class": type(self._tokenizer).__name__, "vocab_size": self.vocab_size} | {
            name: getattr(self._tokenizer, name, None) for name in names
        }

    def token_text(self, token_id: int, *, is_first: bool = False) -> str:
        """Return a token's part of a text, special ones too; a part of a character reads as U+FFFD.

        Args:
            is_first: no text is before it. A tokenizer may strip the space that a text begins with.
        """
        alone = self.decode([token_id], skip_special_tokens=False)
        twice = "" if is_first else self.decode([token_id] * 2, skip_special_tokens=False)
        second = twice.removeprefix(alone)
        return second if second.endswith(alone) else alone

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> tuple[int, ...]:
        """Return the ids of a conversation in the words of the model's chat template.

        Args:
            messages: ``role`` and ``content`` each, and what else the template knows of.
            tools: functions that may be called.
            add_generation_prompt: begin an assistant's turn after them.
            continue_final_message: leave the last message open instead.

        Raises:
            InvalidArgument: there is no chat template, it refuses these messages, or it would leave tools or calls out.
        """
        template = self.chat_template(with_tools=bool(tools))
        if not template:
            raise InvalidArgument("messages", "the served model has no chat template; give it a text to go on with")
        if tools and "tools" not in template:
            raise InvalidArgument("tools", "the served model's chat template knows none")
        if "tool" not in template and any("tool_calls" in one or one["role"] == "tool" for one in messages):
            raise InvalidArgument("messages", "hold calls of tools; the served model's chat template knows none")
        from jinja2 import TemplateError

        try:
            encoded: Any = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                [dict(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                return_dict=True,
            )
        # Templates refuse with an error of Jinja's, and fail with one of Python's where they take a client's object for
        # a text, or walk a schema that is none; transformers fails where it cannot find the message to continue.
        except (TemplateError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
            raise InvalidArgument("messages", f"the chat template refuses them: {error}") from None
        return tuple(encoded["input_ids"])

    def chat_template(self, *, with_tools: bool = False) -> str:
        """Return the chat template, empty where there is none. A model may have one of its own for chats with tools."""
        if not self._tokenizer.chat_template:
            return ""
        try:
            return str(self._tokenizer.get_chat_template(tools=[{}] if with_tools else None))
        # Of several, none is the one for plain chats.
        except ValueError:
            return ""

    def added_token_ids(self, texts: Collection[str]) -> dict[str, int]:
        """Return the ids of those texts that are tokens beside the vocabulary's, special or not."""
        added = self._tokenizer.added_tokens_decoder.items()
        return {one.content: token_id for token_id, one in added if one.content in texts}

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Those that a text skips."""
        if self.backend is None:
            return frozenset(self._tokenizer.all_special_ids)
        return frozenset(i for i, one in self._tokenizer.added_tokens_decoder.items() if one.special)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was taught to answer."""
        return bool(self._tokenizer.chat_template)

    def incremental(
        self, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True, shown_token_ids: Collection[int] = ()
    ) -> "IncrementalText":
        """Return a decoder for one completion of a prompt. See ``IncrementalText``."""
        skipped = self.special_token_ids.difference(shown_token_ids) if skip_special_tokens else frozenset[int]()
        return IncrementalText(self, prompt, skipped)

    @property
    def backend(self) -> Any:
        """The wrapped ``tokenizers.Tokenizer``, None for a tokenizer written in Python."""
        return getattr(self._tokenizer, "backend_tokenizer", None)


class IncrementalText:
    """Text of a growing list of tokens: ``step`` and ``flush`` return the parts that they add to the prompt's text.

    The tokens are decoded together with the prompt's last ones, because a tokenizer such as Llama 2's strips the space
    that a text begins with. A character waits for its last byte; one that the prompt leaves unfinished belongs to the
    completion. There is one exception: with byte-fallback tokenizers (SentencePiece) and bytes that are no UTF-8
    ``decode`` takes back text that was readable, which a stream cannot.

    Args:
        skipped_token_ids: they have no text.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int], skipped_token_ids: frozenset[int]) -> None:
        self._skipped = skipped_token_ids
        self._tokenizer = tokenizer
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)
        self._backend = tokenizer.backend
        # A whole character, and an unfinished one after it.
        shown = (i for i in reversed(range(len(prompt))) if prompt[i] not in skipped_token_ids)
        last = [*islice(shown, 2 * MAX_CHARACTER_TOKENS - 1)][::-1]
        token_ids = [prompt[i] for i in last]
        start, end = self._last_character(token_ids)
        self.num_prompt_read = (*last, len(prompt))[end]
        """How many of the prompt's tokens the prompt's own text has; that of the others is the completion's."""
        self._begun = ""
        """Text of the prompt's last tokens that is the completion's: it comes with the first of its own."""
        self._token_ids = token_ids[start:end]
        self._emitted = [self._decode(self._token_ids)]
        self._num_read = len(self._token_ids)
        self._stream: Any = None
        """Continues after the tokens that were read last; None for the first text, which continues the prompt's."""
        self._begun = self.step(token_ids[end:])

    def _last_character(self, token_ids: list[int]) -> tuple[int, int]:
        """Return where the tokens of the last whole character begin and end. Those after them are unfinished."""
        first_end = max(0, len(token_ids) - MAX_CHARACTER_TOKENS + 1)
        for end in range(len(token_ids), first_end - 1, -1):
            for start in reversed(range(max(0, end - MAX_CHARACTER_TOKENS), end)):
                if self._ends_whole(token_ids[start:end]):
                    return start, end
        return first_end, first_end

    def _ends_whole(self, token_ids: list[int]) -> bool:
        text = self._decode(token_ids)
        if text.endswith(REPLACEMENT):
            return "".join(self._tokenizer.token_strings(token_ids)).endswith(SPELLED_REPLACEMENTS)
        return bool(text)

    def step(self, token_ids: Iterable[int]) -> str:
        """Return the text that became readable."""
        text = "".join(self._step(token_id) for token_id in token_ids if token_id not in self._skipped)
        return self._with_begun(text)

    def _step(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        text = self._rest() if self._stream is None else self._stream_step(token_id)
        return "" if text.endswith(REPLACEMENT) else self._emit(text)

    def _stream_step(self, token_id: int) -> str:
        try:
            return self._stream.step(self._backend, token_id) or ""
        # DecodeStream raises a bare Exception where a decoder took back text.
        except Exception:
            self._stream = None
            return self._decode(self._token_ids[self._num_read :])

    def _rest(self) -> str:
        whole, emitted = self._decode(self._token_ids), "".join(self._emitted)
        return whole[len(emitted) :] if whole.startswith(emitted) else self._decode(self._token_ids[self._num_read :])

    def _emit(self, text: str) -> str:
        if text:
            self._emitted.append(text)
            if self._stream is None and self._backend is not None:
                from tokenizers.decoders import DecodeStream

                self._stream = DecodeStream(ids=self._token_ids[self._num_read :])
            self._num_read = len(self._token_ids)
        return text

    def flush(self) -> str:
        """Return what is left at the end of the completion; bytes that are no character read as U+FFFD."""
        return self._with_begun("" if self._num_read == len(self._token_ids) else self._emit(self._rest()))

    def _with_begun(self, text: str) -> str:
        text, self._begun = self._begun + text, ""
        return text
