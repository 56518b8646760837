"""Compile what a forward of up to 16 rows takes for a card that is not here, ``80`` or ``90``; print what became of it.

Of the models that are named behind it, in bfloat16; a line a kernel, as JSON. A process of its own, because in the
others Triton interprets.
"""

import json
import re
import sys
from typing import Any

import torch
import triton
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from specgate.runtime.attention.packing import Layout, unpack
from specgate.runtime.cuda.decoder.few_row_kernels import FewRowKernels
from specgate.runtime.cuda.decoder.few_rows import AttentionWeights, MlpWeights
from specgate.runtime.cuda.joined import joined_weight
from specgate.runtime.decoder_form import form_of
from tests.support.absent_card import AbsentCard, cuobjdump

MODELS: dict[str, Any] = {
    "1.7B": (LlamaForCausalLM, LlamaConfig(
        hidden_size=2048, num_attention_heads=32, num_key_value_heads=32, intermediate_size=8192, vocab_size=49152,
        num_hidden_layers=1, max_position_embeddings=8192,
    )),
    "grouped": (Qwen3ForCausalLM, Qwen3Config(
        hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, head_dim=128, intermediate_size=3072,
        vocab_size=151936, num_hidden_layers=1, max_position_embeddings=8192,
    )),
}  # fmt: skip


def tell(model: str, name: str, compiled: Any) -> None:
    usage = dict(re.findall(r"(REG|STACK):(\d+)", cuobjdump(compiled, "--dump-resource-usage")))
    sass = cuobjdump(compiled, "-sass")
    print(json.dumps({
        "model": model, "kernel": name, "registers": int(usage["REG"]), "stack": int(usage["STACK"]),
        "shared": compiled.metadata.shared, "matrix": sass.count("HMMA"), "copies": sass.count("LDGSTS"),
    }), flush=True)  # fmt: skip


def compile_model(name: str, kind: Any, config: Any) -> None:
    with torch.device("meta"):
        model = kind(config).to(torch.bfloat16).eval().requires_grad_(False)
    # Memory that nobody touches, but for what is computed with.
    model.to_empty(device="cpu").model.rotary_emb.inv_freq.fill_(1.0)
    form = form_of(model)
    (layer,) = form.layers
    attention, mlp = layer.attention, layer.mlp
    kernels = FewRowKernels(form, 64, torch.bfloat16)
    layout = Layout((3, 2), 8)
    parts = unpack(torch.zeros(layout.num_words, dtype=torch.int64), layout, torch.int32)
    pages = torch.empty(2, 256, form.kv_heads, form.head_dim, dtype=torch.bfloat16)
    rows = parts.cu_seq_q[-1:]
    qkv = joined_weight([attention.query, attention.key, attention.value])
    weights = AttentionWeights(qkv, attention.query_norm, attention.key_norm, attention.out.weight)
    gate_up = MlpWeights(joined_weight([mlp.gate, mlp.up]), mlp.down.weight)
    gain, logits = form.final_norm.weight, torch.empty(5, config.vocab_size, dtype=torch.bfloat16)
    tell(name, "embed", kernels.embed(parts.token_ids, form.embedding.weight, gain, rows))
    tell(name, "rotate", kernels.rotate(weights, parts, pages, pages, rows))
    tell(name, "attend", kernels.attend(parts, pages, pages))
    tell(name, "add_attended", kernels.add_attended(weights.out, gain, rows))
    tell(name, "gate", kernels.gate(gate_up, rows))
    tell(name, "add_gated", kernels.add_gated(gate_up.down, gain, rows))
    tell(name, "head", kernels.head(form.head.weight, rows, logits))


if __name__ == "__main__":
    capability = int(sys.argv[1])
    triton.runtime.driver.set_active(AbsentCard(capability))
    for model_name in sys.argv[2:]:
        compile_model(model_name, *MODELS[model_name])
