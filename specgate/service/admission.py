"""Who may open a session on a service: leases, a number of places, tokenizers that fit, ids that are known."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from specgate.errors import SpecgateError, TokenizerMismatch, TooManySessions
from specgate.rpc.validate import check_token_ids
from specgate.service.leases import LeaseBook
from specgate.tokenizer import first_difference
from specgate.types import SessionSpec, check_range

ANY_TOKEN_ID = 1 << 31
"""More than the ids of any tokenizer."""


class Admission:
    """The places of one service. All calls come from one event loop.

    Args:
        role: "drafter" or "verifier".
        max_sessions: at the same time.
        vocab_size: ids that the service knows, 0 where it has no model; a drafter takes also those that the target
            alone knows.
        tokenizer_fingerprint: of its model; where it has none, any text is taken.
        leases: whose tokens a session needs; None lets anybody in.
    """

    def __init__(
        self,
        role: str,
        max_sessions: int,
        vocab_size: int,
        tokenizer_fingerprint: Mapping[str, str],
        leases: LeaseBook | None = None,
    ) -> None:
        self.max_sessions = max_sessions
        self.num_sessions = 0
        self.num_opened = 0
        self.refused: Counter[str] = Counter()
        """Sessions that were not opened, by their error's reason."""
        self.role = role
        self._vocab_size = vocab_size
        self._fingerprint = tokenizer_fingerprint
        self._leases = leases

    @contextmanager
    def admitted(self, spec: SessionSpec) -> Iterator[None]:
        """Give a session a place for as long as the block lasts.

        Raises:
            LeaseRefused: sessions need a lease here, and the token is none.
            InvalidArgument: a token id is outside the vocabulary.
            TokenizerMismatch: the other model's token ids mean something else.
            TooManySessions: all places are taken.
        """
        # The lease is the outermost: who hands it out again finds the session's place free.
        with nullcontext() if self._leases is None else self._leases.claimed(spec.lease_token):
            with self._refusals():
                self._check(spec)
                if self.num_sessions >= self.max_sessions:
                    raise TooManySessions(f"all {self.max_sessions} sessions of this {self.role} are in use")
            self.num_sessions += 1
            try:
                yield
            finally:
                self.num_sessions -= 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the session that is opened in the block, or why it was not."""
        with self._refusals():
            yield
        self.num_opened += 1

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except SpecgateError as error:
            self.refused[error.reason] += 1
            raise

    def known_vocab_size(self, spec: SessionSpec) -> int:
        """Return the bound of ids that may arrive: a drafter hears all the target says, also ids it has no row for."""
        bound = max(spec.vocab_size, self._vocab_size) if self.role == "drafter" else self._vocab_size
        return bound or ANY_TOKEN_ID

    def _check(self, spec: SessionSpec) -> None:
        check_range("output_token_ids (length)", len(spec.output_token_ids), 0, spec.max_tokens - 1)
        component = first_difference(self._fingerprint, spec.tokenizer_fingerprint)
        if component is not None:
            raise TokenizerMismatch(f"the tokenizers of the pair differ in their {component}")
        for field, ids in (
            ("prompt_token_ids", spec.prompt_token_ids),
            ("output_token_ids", spec.output_token_ids),
            ("sampling.logit_bias", spec.sampling.logit_bias),
        ):
            check_token_ids(field, ids, self.known_vocab_size(spec))
