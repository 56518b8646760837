"""Tiny random HuggingFace models on disk, and a way to run the services' tasks on them without a thread or gRPC.

The weights are scaled up: distributions are far from uniform, and attention decides what comes next. A model without
a tokenizer is served with token ids alone, so a vocabulary of 6 is as good as any.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from specgate.runtime.attention.kernels import NoFusedAttention, torch_varlen
from specgate.runtime.batch_sampler import answers
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.kv_pages import PagePool
from specgate.runtime.loading import LoadedModel, load
from specgate.runtime.sampling_step import ForwardResult
from specgate.runtime.scheduler import ForwardRequest, Limits, Rows, Scheduler

T = TypeVar("T")

END_OF_TEXT = "<|endoftext|>"
_MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("i", "n"), ("Ġ", "Ġ"), ("r", "e"), ("e", "r"), ("o", "n")]


class Mix(NamedTuple):
    """Pull a model's weights towards those of another seed: a draft that often, not always, agrees with its target."""

    seed: int
    share: float


# What makes a config tiny, by the names that the architectures have for it.
_TINY: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "gpt2": lambda layers, hidden: {"n_layer": layers, "n_embd": hidden, "n_head": 4, "n_positions": 512},
    "gptj": lambda layers, hidden: {
        "n_layer": layers, "n_embd": hidden, "n_head": 4, "n_positions": 512, "rotary_dim": 4,
    },
    "falcon": lambda layers, hidden: {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": 4},
    "bloom": lambda layers, hidden: {"n_layer": layers, "hidden_size": hidden, "n_head": 4},
    "opt": lambda layers, hidden: {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": 4, "ffn_dim": 2 * hidden,
        "word_embed_proj_dim": hidden, "max_position_embeddings": 512, "pad_token_id": 1, "bos_token_id": 0,
    },
}  # fmt: skip


def _tiny(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": hidden // 4, "max_position_embeddings": 512,
    }  # fmt: skip


def write_model(
    folder: Path,
    model_type: str,
    *,
    vocab_size: int = 64,
    layers: int = 2,
    hidden: int = 32,
    seed: int = 0,
    gain: float = 1.5,
    mix: Mix | None = None,
    tokenizer: bool = False,
    eos_token_id: int | list[int] | None = None,
    **config: Any,
) -> Path:
    """Write a model of any architecture, and return its folder.

    Args:
        model_type: transformers' name of the architecture, such as "llama".
        gain: spread of what each matrix gives for an input of spread 1; 1.5 makes peaked, uneven distributions.
        tokenizer: write a byte-level one beside the model; ``vocab_size`` is then ``TOKENIZER_SIZE`` or more.
        eos_token_id: goes into generation_config.json.
        config: fields of the architecture's own configuration.
    """
    sizes = _TINY.get(model_type, _tiny)(layers, hidden)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    settings: dict[str, Any] = {"vocab_size": vocab_size, "tie_word_embeddings": False, **special, **sizes, **config}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    _fill(model, seed, gain, mix)
    model.generation_config.eos_token_id = eos_token_id
    model.save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder)
    return folder


def folders_of(
    factory: pytest.TempPathFactory, architectures: Mapping[str, dict[str, Any]], vocab_size: int
) -> Callable[[str], Path]:
    """Return what gives a model type's folder, written when it is first asked for."""

    @cache
    def write(model_type: str) -> Path:
        folder = factory.mktemp(model_type)
        return write_model(folder, model_type, vocab_size=vocab_size, **architectures[model_type])

    return write


def write_llama(folder: Path, vocab_size: int = 64, **others: Any) -> Path:
    """Write a Llama; see ``write_model``. A model with fewer layers has the lower layers of one with more."""
    return write_model(folder, "llama", vocab_size=vocab_size, **others)


@torch.no_grad()
def _fill(model: torch.nn.Module, seed: int, gain: float, mix: Mix | None) -> None:
    """Draw every matrix by its own name, so that two models share what they both have."""
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue
        values = _values(name, seed, mix, parameter.shape)
        is_embedding = "embed" in name or "wte" in name or "wpe" in name
        parameter.copy_(values if is_embedding else values * gain / parameter.shape[-1] ** 0.5)


def _values(name: str, seed: int, mix: Mix | None, shape: torch.Size) -> torch.Tensor:
    own = _normal(name, seed, shape)
    if mix is None:
        return own
    return (1 - mix.share**2) ** 0.5 * own + mix.share * _normal(name, mix.seed, shape)


def _normal(name: str, seed: int, shape: torch.Size) -> torch.Tensor:
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=4).digest()
    return torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(digest)))


def _tokenizer_vocab() -> dict[str, int]:
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in _MERGES), END_OF_TEXT]
    return {symbol: token_id for token_id, symbol in enumerate(symbols)}


TOKENIZER_SIZE = len(_tokenizer_vocab())


def write_tokenizer(folder: Path) -> Path:
    """Write a byte-level BPE tokenizer of ``TOKENIZER_SIZE`` ids: any text round-trips. The last id ends a text."""
    tokenizer = Tokenizer(models.BPE(vocab=_tokenizer_vocab(), merges=_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT).save_pretrained(folder)
    return folder


def rewrite_json(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file, such as a model's config.json."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def skip_without_varlen() -> None:
    """Skip a test where torch has no fused attention over pages, as 2.11 has not."""
    try:
        torch_varlen()
    except NoFusedAttention as error:
        pytest.skip(str(error))


def quiet(stage: str, done: int, total: int) -> None:
    """A progress callback for who does not look."""


def load_float32(folder: Path) -> LoadedModel:
    return load(str(folder), torch.device("cpu"), torch.float32, quiet)


def make_runner(folder: Path, kv_tokens: int = 4096, page_size: int = 512, *, packs: bool = True) -> ModelRunner:
    """Load a model and bring it onto its serving path, self-check included."""
    return prepare(load_float32(folder), kv_tokens, page_size, quiet, packs=packs)


def eager_model(folder: Path) -> Any:
    """Load the model by transformers alone."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def eager_logits(model: Any, token_ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the logits of equally long sequences by transformers alone, [sequences, length, vocabulary].

    Args:
        model: an eager model, or the folder to load it from.
    """
    if isinstance(model, Path):
        model = eager_model(model)
    logits: torch.Tensor = model(torch.tensor(token_ids), use_cache=False).logits
    return logits


# Running tasks. A step names the runner as well as the need, so that work of two models can be driven side by side.


class Runner(Protocol):
    """What answers rows with logits: a ModelRunner, or what stands in for one."""

    vocab_size: int
    pool: PagePool
    loaded: Any

    def forward(self, batch: list[Rows]) -> list[torch.Tensor]: ...


Step = tuple[Runner, ForwardRequest]
Work = Generator[Step, ForwardResult, T]


def on(runner: Runner, task: Generator[ForwardRequest, ForwardResult, T]) -> Work[T]:
    """Say at every step of an engine task which runner it is for."""
    answer: ForwardResult | None = None
    while True:
        try:
            need = next(task) if answer is None else task.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield runner, need


def run_all(works: Iterable[Work[T]], limits: Limits | None = None) -> list[T]:
    """Run works side by side, as an engine does, and return their results in order."""
    running = list(works)
    results: dict[int, T] = {}
    waiting: dict[int, Step] = {}

    def advance(index: int, answer: ForwardResult | None) -> None:
        try:
            waiting[index] = next(running[index]) if answer is None else running[index].send(answer)
        except StopIteration as stop:
            results[index] = stop.value

    for index in range(len(running)):
        advance(index, None)
    while waiting:
        for runner in {id(runner): runner for runner, _ in waiting.values()}.values():
            needs = {index: need for index, (its_runner, need) in waiting.items() if its_runner is runner}
            indices = list(needs)
            plan = Scheduler(runner.pool, limits or Limits()).plan(list(needs.values()))
            asked = [needs[indices[place]].sample if rows.num_logits else None for place, rows in plan.items()]
            for place, answer in zip(plan, answers(runner.forward(list(plan.values())), asked), strict=True):
                if isinstance(answer, Exception):
                    raise answer
                if plan[place].sequence.num_cached >= needs[indices[place]].length:
                    del waiting[indices[place]]
                    advance(indices[place], answer)
    return [results[index] for index in range(len(running))]


def run_task(runner: Runner, task: Generator[ForwardRequest, ForwardResult, T], limits: Limits | None = None) -> T:
    """Run one engine task to its end, in this thread, and return its result."""
    (result,) = run_all([on(runner, task)], limits)
    return result


class KnownModel:
    """A runner without a model: logits are a fixed random function of the prefix, known without a forward.

    For laws that are enumerated to the last branch, where a real forward would be all the time there is.
    """

    def __init__(self, vocab_size: int, seed: int, *, gain: float = 1.5, mix: Mix | None = None) -> None:
        self.vocab_size = vocab_size
        self.pool = PagePool(num_pages=1 << 12, page_size=64)
        self.loaded = SimpleNamespace(context_length=64)
        self._seed, self._gain, self._mix = seed, gain, mix
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        """Return the row after ``prefix``, [vocabulary]."""
        key = tuple(prefix)
        if key not in self._known:
            shape = torch.Size([self.vocab_size])
            self._known[key] = self._gain * _values(str(key), self._seed, self._mix, shape)
        return self._known[key]

    def forward(self, batch: list[Rows]) -> list[torch.Tensor]:
        """ForwardResult as a ModelRunner does."""
        answers = []
        for sequence, num_rows, num_logits in batch:
            sequence.num_cached += num_rows
            sequence.num_computed += num_rows
            ends = range(sequence.num_cached - num_logits + 1, sequence.num_cached + 1)
            rows = [self.logits(sequence.token_ids[:end]) for end in ends]
            answers.append(torch.stack(rows) if rows else torch.empty(0, self.vocab_size))
        return answers
