"""Models with vocabularies of their own: of letters, of bytes, and of a model's tokens in another order."""

import json
from pathlib import Path
from shutil import copy
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.support.models import write_llama


def write_letters(folder: Path, letters: str) -> Path:
    """Give the model in ``folder`` a tokenizer whose ids are the places of these letters."""
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return folder


def write_permuted(folder: Path, source: Path, seed: int = 1) -> Path:
    """Write a model with a tokenizer's ids, and the model's rows, in another order: it says the same in other ids."""
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    order = torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(seed))
    place = order.argsort().tolist()
    rows = model.get_input_embeddings().weight
    rows.data = rows.data[order]
    model.config.eos_token_id = model.config.bos_token_id = model.generation_config.eos_token_id = place[0]
    model.generation_config.pad_token_id = place[0]
    model.save_pretrained(folder)
    copy(source / "tokenizer_config.json", folder)
    told = json.loads((source / "tokenizer.json").read_text())
    told["model"]["vocab"] = {token: place[i] for token, i in told["model"]["vocab"].items()}
    told["added_tokens"] = [one | {"id": place[one["id"]]} for one in told["added_tokens"]]
    (folder / "tokenizer.json").write_text(json.dumps(told))
    return folder


def write_byte_model(folder: Path) -> Path:
    """Write a random model whose tokens are bytes."""
    write_llama(folder, vocab_size=256, seed=1, max_position_embeddings=1024)
    return write_letters(folder, "".join(sorted(pre_tokenizers.ByteLevel.alphabet())))
