"""The model, its weights and its KV pages: rows of sequences in, logits out. The only user of the device."""

import inspect
from collections.abc import Sequence

import torch

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.errors import ResourceExhausted
from specgate.runtime.attention.interface import Batch, Forward, Inputs, Kernel
from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.attention.varlen import TokenPages, VarlenKernel
from specgate.runtime.batch_sampler import Chooser
from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.decoder import DecoderKernel
from specgate.runtime.cpu.drafting import CpuDrafter
from specgate.runtime.cpu.graphs import CpuGraphs
from specgate.runtime.cuda import graphs
from specgate.runtime.cuda.decoder.drafting import CudaDrafter, StackedDecoder, StepLauncher
from specgate.runtime.cuda.graphs import Bucket, Capturer, Graph
from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.runtime.loading import LoadedModel, Progress
from specgate.runtime.one_call import Drafted, OneCallDrafter
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows


class ModelCall:
    """A HuggingFace model, on whose layers the paged attention is set, as a function of one ragged batch.

    Args:
        loaded: the model; its padding rows of the vocabulary are cut off.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._keeps_some = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Return the logits of the rows to keep, [rows, vocabulary], in the model's dtype."""
        keep = inputs.keep
        # To transformers 0 means all rows, and spares a copy.
        extra = {"logits_to_keep": 0 if keep is None else keep} if self._keeps_some else {}
        logits: torch.Tensor = self._loaded.model(
            input_ids=inputs.token_ids[None],
            position_ids=inputs.positions[None],
            use_cache=False,
            ragged=inputs.ragged,
            **extra,
        ).logits[0]
        if keep is not None and not self._keeps_some:
            logits = logits[keep]
        return logits[:, : self._loaded.vocab_size]


class ModelRunner:
    """Runs ragged batches of one model over its KV pages. Not thread-safe: the engine's thread owns it.

    Args:
        loaded: the model with the paged attention set.
        kv_tokens: how many tokens the pages hold in all.
        page_size: tokens a page; on CPU large enough that most sequences lie in one page and are read as a view.
        kernel: how attention is computed; one sequence after the other where absent.

    Attributes:
        call: computes a forward; it is replaced before graphs are recorded, or not at all.
        chooser: see ``batch_sampler.answers``.
        why_no_graphs: why CUDA graphs could not be recorded; empty where they were, or were not asked for.
        drafter: drafts several tokens in one call; None: they are forwards in a row.
        drafts_by: what makes them, for a person.
    """

    def __init__(self, loaded: LoadedModel, kv_tokens: int, page_size: int, kernel: Kernel | None = None) -> None:
        self.loaded = loaded
        self.kernel: Kernel = kernel or PagedSdpaKernel()
        self.pool = PagePool(max(1, kv_tokens // page_size), page_size)
        self.vocab_size = loaded.vocab_size
        self.device = loaded.device
        self._pages = self.kernel.pages(self.pool.num_pages, page_size)
        self.call: Forward = self.kernel if isinstance(self.kernel, DecoderKernel) else ModelCall(loaded)
        self._graphs: list[Graph] = []
        has_library = self.device.type == "cpu" and cpu_library.instruction_set() is not InstructionSet.NONE
        self.chooser: Chooser | None = native_calls.choose if has_library else None
        self.why_no_graphs = ""
        self.drafter: OneCallDrafter | None = self._cpu_drafter()
        self.drafts_by = "forwards in a row"
        self.cpu_graphs = CpuGraphs(self.call)
        self.last_num_calls = self.last_num_windows = self.last_num_sequences = self.last_num_rows = 0

    @property
    def kv_bytes_a_token(self) -> int:
        """Bytes of all layers' keys and values, known from the first forward on."""
        return self._pages.bytes_a_token

    @property
    def buckets(self) -> list[Bucket]:
        """What has a graph, the smallest first."""
        return [graph.bucket for graph in self._graphs]

    def resize(self, kv_tokens: int) -> None:
        """Begin anew with pages for ``kv_tokens``, at least one. No sequence may be open; graphs are dropped.

        A forward has shown their shapes, so their memory is taken now, before others can take it.

        Raises:
            ResourceExhausted: the memory is not there.
        """
        self.drop_graphs()
        num_pages = max(1, kv_tokens // self.pool.page_size)
        try:
            self._pages = self._pages.resized(num_pages)
        except (RuntimeError, MemoryError) as error:
            raise ResourceExhausted(f"no memory for KV pages of {kv_tokens} tokens: {error}") from error
        self.pool = PagePool(num_pages, self.pool.page_size)

    def capture(self, buckets: Sequence[Bucket], capturer: Capturer, progress: Progress) -> None:
        """Record a graph for each bucket, the largest first, over the pages as they are now.

        Raises:
            RuntimeError: the kernel cannot be recorded, or the device refuses.
        """
        if not isinstance(self.kernel, VarlenKernel):
            raise RuntimeError(f"attention by {self.kernel.name} reads numbers that a graph would freeze")
        if not self._pages.layers:
            raise RuntimeError("the pages are made by the first forward, which was not run yet")
        shape = (max(bucket.num_rows for bucket in buckets), self.vocab_size)
        logits = torch.empty(shape, dtype=self.loaded.dtype, device=self.device)
        self._graphs = graphs.capture(buckets, self.kernel, self.call, self._pages, logits, capturer, progress)

    @torch.inference_mode()
    def clear(self, sequence: KVSequence) -> None:
        """Fill a sequence's pages with zeros: memory that was never written is read faster than any other."""
        self._pages.clear(sequence.block_table)

    def drop_graphs(self) -> None:
        """Run everything without graphs from now on."""
        self._graphs, self.drafter = [], self._cpu_drafter()
        self.cpu_graphs.drop()

    def _cpu_drafter(self) -> CpuDrafter | None:
        kernel = self.kernel
        if not isinstance(kernel, DecoderKernel):
            return None
        return CpuDrafter(kernel, lambda batch: kernel.inputs(batch, self._pages, self.device))

    @torch.inference_mode()
    def forward(
        self, batch: Sequence[Rows], *, use_graphs: bool = True, token_ids: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Run all rows in one pass and mark them cached; return each entry's logits [num_logits, vocabulary].

        ``token_ids`` [rows whose logits are wanted], int64 on the device, are what these rows hold in place of what
        their sequences say.

        The logits are the caller's: a later forward does not change them, whether it was replayed or not. They may be
        NaN or infinite: that shows when they are sampled.
        """
        self._pages.copy_rows(self.pool.take_copies())
        usable = self._graphs if use_graphs else []
        graph = next((one for one in usable if one.fits(batch)), None)
        logits = self._run(batch, token_ids, use_graphs=use_graphs) if graph is None else graph.run(batch, token_ids)
        if graph is not None:
            self._tell(graph, batch)
        self._mark(batch)
        return list(logits.split([rows.num_logits for rows in batch]))

    @torch.inference_mode()
    def drafter_by(self, launcher: StepLauncher, decoder: StackedDecoder, capturer: Capturer) -> CudaDrafter:
        """Return what drafts by ``launcher``, recorded over the pages as they are now.

        Raises:
            RuntimeError: the pages are not all alike, or the device refuses.
        """
        if not isinstance(self._pages, TokenPages):
            raise RuntimeError(f"the pages of attention by {self.kernel.name} lie otherwise")
        return CudaDrafter(launcher, decoder, self._pages.stack_of_all(), capturer, self.vocab_size)

    @torch.inference_mode()
    def draft(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> Drafted:
        """Run what up to ``num_steps`` forwards would, each on the token that the one before it chose, in one call.

        All rows are then cached, and so are all chosen tokens but the last one, though no sequence has them yet.
        """
        if self.drafter is None:
            raise RuntimeError("there is no drafter")
        width = self.drafter.most_rows
        if leading := [Rows(rows.sequence, more, 0) for rows in batch if (more := rows.num_rows - width) > 0]:
            self.forward(leading)
        self._pages.copy_rows(self.pool.take_copies())
        batch = [rows._replace(num_rows=min(rows.num_rows, width)) for rows in batch]
        drafted = self.drafter.draft(batch, choices, num_steps)
        num_steps = len(drafted.tables[0])
        self._mark([rows._replace(num_rows=rows.num_rows + num_steps - 1) for rows in batch])
        return drafted

    def _mark(self, batch: Sequence[Rows]) -> None:
        """Count these rows as cached."""
        for sequence, num_rows, _ in batch:
            sequence.num_cached += num_rows
            sequence.num_computed += num_rows
            self.pool.remember(sequence)

    @torch.inference_mode()
    def record(self, batch: Sequence[Rows]) -> None:
        """Record the forward of a batch on the CPU, all of whose logits are wanted; it is run by that.

        Raises:
            UnsupportedArchitecture: the model does not let itself be recorded.
        """
        self.cpu_graphs.record(self.kernel.inputs(batch, self._pages, self.device))

    def _run(self, batch: Sequence[Rows], token_ids: torch.Tensor | None, *, use_graphs: bool) -> torch.Tensor:
        inputs = self.kernel.inputs(batch, self._pages, self.device)
        if token_ids is not None:
            inputs.replace_kept(token_ids)
        logits = self.cpu_graphs(inputs) if use_graphs and self.cpu_graphs.fit(inputs) else self.call(inputs)
        self._tell(inputs.ragged, batch)
        return logits

    def _tell(self, ragged: "Batch | Graph", batch: Sequence[Rows]) -> None:
        self.last_num_calls, self.last_num_windows = ragged.num_calls, ragged.num_windows
        self.last_num_sequences, self.last_num_rows = len(batch), _num_rows(batch)


def _num_rows(batch: Sequence[Rows]) -> int:
    """Return how many rows there are; 0 where tokens of prompts are among them, which want no logits."""
    return sum(rows.num_rows for rows in batch) if all(rows.num_rows == rows.num_logits for rows in batch) else 0
