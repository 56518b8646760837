#!/usr/bin/env python3
"""Train the bundled draft/target pair on the Python standard library's own source.

Stages: corpus -> tokenizer -> target -> text written by the target -> draft, distilled from the target
on both -> report. Every random choice follows from ``--seed``, every length is a number of steps and
never of minutes, so two runs on the same Python, torch and thread count give the same files.

    python scripts/train_demo_pair.py                    # the bundled pair, two hours on two cores
    python scripts/train_demo_pair.py --device cuda --target-steps 20000 --draft-steps 12000
    python scripts/train_demo_pair.py --stage draft      # keep the target, train the draft again
    python scripts/train_demo_pair.py --stage draft --lessons /tmp/lessons   # and keep what the target said
    python scripts/train_demo_pair.py --stage report     # measure only
    python scripts/train_demo_pair.py --shapes smollm2 --device cuda --out PAIR ...   # as large as SmolLM2
    python scripts/train_demo_pair.py --texts FOLDER --out PAIR    # another pair, on other text
    python scripts/train_demo_pair.py --stage other-draft --other-draft FOLDER --continuations 40 --draft-steps 3000
                                                         # a draft with a vocabulary of its own
    python scripts/train_demo_pair.py --texts FOLDER --out PAIR --start-from specgate/demo_pair --target-steps 150
"""

import argparse
import hashlib
import json
import math
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from pair_corpus import Corpus, read_standard_library, read_texts
from pair_shapes import PAIRS, Shape
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specgate_lab.progress import StageBars, counting_bar
from specgate_lab.train import training
from specgate_lab.train.lessons import TOP, Lessons, batches, write_tensors
from specgate_lab.train.student import Student

EOS = "<|endoftext|>"
EOS_ID = 0
CONTEXT_LENGTH = 1024
MUON_LR, DRAFT_ADAM_LR = 0.02, 0.006
"""For weights that begin at random."""
OUT = Path(__file__).resolve().parent.parent / "specgate" / "demo_pair"

console = Console()


# --- tokenizer ------------------------------------------------------------------------


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE, so that every text has an encoding."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, model_max_length=CONTEXT_LENGTH)


def to_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """Return all texts as one int64 row of token ids, an EOS after each."""
    rows = tokenizer(texts, verbose=False)["input_ids"]
    return torch.tensor([token_id for row in rows for token_id in (*row, EOS_ID)])


def windows(stream: torch.Tensor, batch: int, width: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield [batch, width] windows that cover the stream once in random order, then again, forever."""
    count = (len(stream) - width) // width
    while True:
        offset = int(torch.randint(0, width, (), generator=generator))
        for chosen in torch.randperm(count, generator=generator).split(batch):
            if len(chosen) == batch:
                yield torch.stack([stream[offset + i * width :][:width] for i in chosen.tolist()])


# --- training ------------------------------------------------------------------------------------


def new_model(shape: Shape, args: argparse.Namespace, role: str) -> LlamaForCausalLM:
    """Return a model with random weights, or the one of this role in the pair to start from."""
    if args.start_from:
        return load(args.start_from / role, args.device).train()
    config = LlamaConfig(
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=EOS_ID,
        eos_token_id=EOS_ID,
        **{"vocab_size": PAIRS[args.shapes].vocab_size, **shape},
    )
    with torch.device(args.device):
        return LlamaForCausalLM(config)


def train(
    name: str, model: LlamaForCausalLM, steps: int, loss_of: Callable[[int], torch.Tensor], adam_lr: float = 0.004
) -> None:
    """Run ``steps`` optimiser steps on ``loss_of(step)``, and show them."""
    model.train()
    optimizers = training.Optimizers(model, MUON_LR, adam_lr)
    with StageBars(console) as bars:
        for step in range(steps):
            loss = loss_of(step)
            optimizers.step(loss, training.rate_factor(step, steps // 2, steps))
            bars.show(name, step + 1, steps, f"loss {loss.item():.3f}")
    model.eval()


def autocast(device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16)


def train_target(stream: torch.Tensor, args: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(args.seed)
    model = new_model(PAIRS[args.shapes].target, args, "target")
    generator = torch.Generator().manual_seed(args.seed)
    # The last sixth at the full context length, so that positions past the short window are known too.
    short = windows(stream, args.batch, CONTEXT_LENGTH // 2, generator)
    long = windows(stream, args.batch // 2, CONTEXT_LENGTH, generator)

    def loss_of(step: int) -> torch.Tensor:
        ids = next(long if step >= args.target_steps * 5 // 6 else short).to(args.device)
        with autocast(args.device):
            logits = model(ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    train("target", model, args.target_steps, loss_of)
    return model


@torch.no_grad()
def continuations(target: LlamaForCausalLM, stream: torch.Tensor, args: argparse.Namespace) -> torch.Tensor:
    """Return rows that start with corpus text and go on in the target's own words, greedy and sampled.

    The draft is asked about the target's text, not about the corpus: it has to see such text in training,
    and much of it. Shown 2,500 rows twenty times it learns those by heart (96 % agreement there, 69 % on new ones).
    """
    generator = torch.Generator().manual_seed(args.seed + 1)
    torch.manual_seed(args.seed + 1)
    prompt_width, batch = 64, 128
    source = windows(stream, batch, prompt_width, generator)
    rows = []
    with counting_bar(console, "target writes", args.continuations) as on_batch:
        for index in range(args.continuations):
            sampling = {"do_sample": True, "top_k": 0} if index % 5 == 4 else {"do_sample": False}
            prompt = next(source).to(args.device)
            row = target.generate(
                prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=192, max_new_tokens=192,
                pad_token_id=EOS_ID, cache_implementation="static", disable_compile=True, **sampling,
            )  # fmt: skip
            rows.append(row.cpu())
            on_batch()
    return torch.cat(rows)


def small(ids: torch.Tensor) -> torch.Tensor:
    """Return ids in 16 bits where they fit: there are as many as the target's top choices at every position."""
    return ids.short() if int(ids.max()) <= torch.iinfo(torch.int16).max else ids.int()


@torch.no_grad()
def ask_target(target: LlamaForCausalLM, rows: torch.Tensor, args: argparse.Namespace) -> Lessons:
    """Ask once and keep the likeliest choices: the draft sees every row several times, the target runs once."""
    top_ids, top_log_probs, parts = [], [], rows.split(8)
    with counting_bar(console, "target explains", len(parts)) as on_part:
        for ids in parts:
            with autocast(args.device):
                logits = target(ids.to(args.device), use_cache=False).logits
            top = logits.float().log_softmax(-1).topk(TOP, dim=-1)
            # What it says of a token is made at the position before it.
            top_ids.append(small(top.indices).roll(1, 1).cpu())
            top_log_probs.append(top.values.half().roll(1, 1).cpu())
            on_part()
    first = torch.ones(len(rows), dtype=torch.int32)
    bounds, none = (0 * first, first, rows.shape[1] * first), torch.zeros(len(rows), dtype=torch.bool)
    return Lessons(small(rows), *bounds, none, torch.cat(top_ids), torch.cat(top_log_probs))


def lessons_of(target: LlamaForCausalLM, stream: torch.Tensor, args: argparse.Namespace) -> list[Lessons]:
    """Return the target's words on its own text and on the corpus; read back from ``--lessons`` if they are there."""
    names = ("own", "corpus")
    if args.lessons and (args.lessons / "corpus.safetensors").exists():
        return [Lessons(**load_file(args.lessons / f"{name}.safetensors")) for name in names]
    width = CONTEXT_LENGTH // 2
    corpus = stream[: len(stream) // width * width].reshape(-1, width)
    order = torch.randperm(len(corpus), generator=torch.Generator().manual_seed(args.seed + 3))
    rows = corpus if args.corpus_rows is None else corpus[order[: args.corpus_rows]]
    lessons = [ask_target(target, part, args) for part in (continuations(target, stream, args), rows)]
    if args.lessons:
        args.lessons.mkdir(parents=True, exist_ok=True)
        for name, part in zip(names, lessons, strict=True):
            write_tensors(args.lessons / f"{name}.safetensors", part._asdict())
    return lessons


def train_draft(target: LlamaForCausalLM, stream: torch.Tensor, args: argparse.Namespace) -> LlamaForCausalLM:
    tokens, seed = args.batch * CONTEXT_LENGTH // 2, args.seed + 2
    own, corpus = (batches(part, tokens, seed, 0) for part in lessons_of(target, stream, args))
    torch.manual_seed(seed)
    model = new_model(PAIRS[args.shapes].draft, args, "draft")
    if args.compile:
        model.model.compile()
    student = Student(model)

    def loss_of(step: int) -> torch.Tensor:
        # The corpus for breadth, the target's own text for what the draft will be asked.
        with autocast(args.device):
            return training.loss_of(student, next(corpus if step % 5 < 2 else own))

    train("draft", model, args.draft_steps, loss_of, DRAFT_ADAM_LR)
    return model


def train_other_draft(target: LlamaForCausalLM, texts: list[str], args: argparse.Namespace) -> None:
    """Train a draft of another vocabulary on the target's own text and on the corpus, token by token.

    Two vocabularies have no distributions to compare, so it learns from what the target writes (sequence-level
    distillation: Kim and Rush, 2016).
    """
    theirs = PreTrainedTokenizerFast.from_pretrained(args.out / "target")
    written = theirs.batch_decode(continuations(target, to_stream(theirs, texts), args))
    tokenizer = train_tokenizer(texts, args.vocab_size)
    generator = torch.Generator().manual_seed(args.seed + 2)
    own, corpus = (
        windows(to_stream(tokenizer, part), args.batch, CONTEXT_LENGTH // 2, generator) for part in (written, texts)
    )
    torch.manual_seed(args.seed + 2)
    model = new_model(PAIRS[args.shapes].draft | {"vocab_size": args.vocab_size}, args, "draft")

    def loss_of(step: int) -> torch.Tensor:
        ids = next(corpus if step % 5 < 2 else own).to(args.device)
        with autocast(args.device):
            logits = model(ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    train("draft", model, args.draft_steps, loss_of, DRAFT_ADAM_LR)
    save(model, tokenizer, args.other_draft)


# --- report --------------------------------------------------------------------------------------


@torch.no_grad()
def bits_per_byte(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> float:
    """Return the held-out bits per UTF-8 byte, windows of the context length, no overlap."""
    nats, num_bytes = 0.0, 0
    for text in texts:
        ids = torch.tensor([[EOS_ID, *tokenizer(text, verbose=False)["input_ids"]]], device=model.device)
        for start in range(0, ids.shape[1] - 1, CONTEXT_LENGTH - 1):
            window = ids[:, start : start + CONTEXT_LENGTH]
            logits = model(window, use_cache=False).logits[0, :-1].float()
            nats += F.cross_entropy(logits, window[0, 1:], reduction="sum").item()
        num_bytes += len(text.encode())
    return nats / math.log(2) / num_bytes


@torch.no_grad()
def greedy_agreement(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, stream: torch.Tensor, num_prompts: int = 50
) -> float:
    """Return how often the draft's first choice is the target's, over 128 greedy tokens a held-out prompt."""
    starts = torch.linspace(0, len(stream) - 65, num_prompts).long()
    prompts = torch.stack([stream[s : s + 64] for s in starts.tolist()]).to(target.device)
    ids = target.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=False, min_new_tokens=128,
        max_new_tokens=128, pad_token_id=EOS_ID,
    )  # fmt: skip
    choices = draft(ids, use_cache=False).logits[:, 63:-1].argmax(-1)
    return (choices == ids[:, 64:]).float().mean().item()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=EOS_ID)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder: Path, device: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()


def write_report(out: Path, corpus: Corpus, args: argparse.Namespace) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "target")
    target, draft = load(out / "target", args.device), load(out / "draft", args.device)
    report = {
        "python": platform.python_version(),
        "corpus_sha256": hashlib.sha256("\0".join(corpus.training).encode()).hexdigest(),
        "held_out": corpus.names,
        "seed": args.seed,
        "target_steps": args.target_steps,
        "draft_steps": args.draft_steps,
        "continuations": args.continuations,
        "target_parameters": target.num_parameters(),
        "draft_parameters": draft.num_parameters(),
        "target_bits_per_byte": round(bits_per_byte(target, tokenizer, corpus.held_out), 4),
        "draft_bits_per_byte": round(bits_per_byte(draft, tokenizer, corpus.held_out), 4),
        "greedy_agreement": round(greedy_agreement(target, draft, to_stream(tokenizer, corpus.held_out)), 4),
    }
    (out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    console.print_json(data=report)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--texts", type=Path, help="folder of .txt, .rst and .md files instead of Python's own source")
    parser.add_argument("--shapes", choices=list(PAIRS), default="bundled", help="sizes of the two models")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--start-from", type=Path, help="a pair of these shapes whose tokenizer and weights to begin with"
    )
    parser.add_argument("--seed", type=int, default=20241122)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8, help="windows of 512 tokens per step")
    parser.add_argument("--target-steps", type=int, default=1500)
    parser.add_argument("--draft-steps", type=int, default=9000)
    parser.add_argument("--continuations", type=int, default=100, help="batches of 128 rows, 192 tokens each")
    parser.add_argument("--corpus-rows", type=int, help="rows of 512 tokens that the draft learns from; all")
    parser.add_argument("--lessons", type=Path, help="folder that keeps what the target said between runs")
    parser.add_argument("--compile", action="store_true", help="compile the draft's loss: half as long, needs g++")
    parser.add_argument("--stage", choices=["all", "draft", "other-draft", "report"], default="all")
    parser.add_argument("--other-draft", type=Path, help="folder of the draft with a vocabulary of its own")
    parser.add_argument("--vocab-size", type=int, default=3000, help="of that draft")
    args = parser.parse_args()
    if args.shapes != "bundled" and (args.out == OUT or args.start_from):
        parser.error("--shapes needs an --out of its own, and does not go with --start-from")
    if (args.stage == "other-draft") != (args.other_draft is not None):
        parser.error("--stage other-draft and --other-draft go together")
    return args


def main() -> None:
    args = parse_args()
    corpus = read_texts(args.texts) if args.texts else read_standard_library()
    training = corpus.training
    console.print(f"corpus: {len(training)} files, {sum(map(len, training)) / 1e6:.1f} M characters")
    if args.stage == "all":
        if args.start_from:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(args.start_from / "target")
        else:
            tokenizer = train_tokenizer(training, PAIRS[args.shapes].vocab_size)
        stream = to_stream(tokenizer, training)
        console.print(f"{len(stream) / 1e6:.2f} M tokens")
        save(train_target(stream, args), tokenizer, args.out / "target")
    if args.stage == "other-draft":
        return train_other_draft(load(args.out / "target", args.device), training, args)
    if args.stage in ("all", "draft"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(args.out / "target")
        target = load(args.out / "target", args.device)
        draft = train_draft(target, to_stream(tokenizer, training), args)
        save(draft, tokenizer, args.out / "draft")
    write_report(args.out, corpus, args)


if __name__ == "__main__":
    main()
