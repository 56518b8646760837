"""The text of one completion: decoded as tokens come, cut before a stop string."""

from typing import NamedTuple

from orchestrator.decode.text import IncrementalText


class Pushed(NamedTuple):
    """Text that may be shown, and how many of the tokens belong to the completion."""

    text: str
    num_tokens: int


class OutputText:
    """Turns committed tokens into text, and holds text back while it may be the start of a stop string.

    Tokens are looked at one by one, so that neither the text nor the last token depends on how many came in one
    verdict. The completion ends with the token that completes a stop string, its text before that string; where one
    token completes several, before the leftmost. Without a tokenizer (``decoder`` None) the text is empty.

    Args:
        min_tokens: that complete no stop string, whatever they read as.
        include_stop: end the text behind the stop string.
    """

    def __init__(
        self,
        decoder: IncrementalText | None,
        stop: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        self._decoder = decoder
        self._stop = stop
        self._num_early = min_tokens
        self._include_stop = include_stop
        self._held = ""
        self.stopped = False
        """Whether a stop string was found: nothing follows."""

    def push(self, token_ids: tuple[int, ...]) -> Pushed:
        """Return the text that ``token_ids`` made readable, and how many of them are kept."""
        if self._decoder is None:
            return Pushed("", len(token_ids))
        if not self._stop:
            return Pushed(self._decoder.step(token_ids), len(token_ids))
        text = ""
        for index, token_id in enumerate(token_ids):
            self._num_early -= 1
            text += self._release(self._decoder.step((token_id,)))
            if self.stopped:
                return Pushed(text, index + 1)
        return Pushed(text, len(token_ids))

    def finish(self) -> str:
        """Return what was held back, when no more tokens follow."""
        if self._decoder is None:
            return ""
        text = self._release(self._decoder.flush())
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, new_text: str) -> str:
        if not new_text:
            return ""
        text, num_held = self._held + new_text, len(self._held)
        # What is held may have a whole stop string of an early token in it: only the new text completes one.
        starts = [(text.find(stop, max(0, num_held + 1 - len(stop))), len(stop)) for stop in self._stop]
        found = [(start, start + length) for start, length in starts if start >= 0]
        if found and self._num_early < 0:
            self.stopped, self._held = True, ""
            start, end = min(found)
            return text[: end if self._include_stop else start]
        cut = len(text) - _longest_start(text, self._stop)
        self._held = text[cut:]
        return text[:cut]


def _longest_start(text: str, stop: tuple[str, ...]) -> int:
    """Return the length of the longest end of ``text`` that a stop string starts with."""
    longest = min(len(text), max((len(one) - 1 for one in stop), default=0))
    for length in range(longest, 0, -1):
        if any(one.startswith(text[-length:]) for one in stop):
            return length
    return 0
