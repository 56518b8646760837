"""The architectures that are tested, each with what it covers and what must come of it.

docs/internals/adding-an-architecture.md has this table with the numbers of a run; ``scripts/models_table`` writes it.
"""

from typing import Any, NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WINDOW = 24
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}


class Case(NamedTuple):
    """One kind of model: its configuration, what that covers, and what must come of it.

    Attributes:
        unlike: changes of the configuration, each of which must show in the logits; else it was not covered.
        refused: part of the reason; empty: it is served.
    """

    name: str
    model_type: str
    config: dict[str, Any]
    covers: str
    unlike: tuple[dict[str, Any], ...] = ()
    refused: str = ""

    @property
    def architecture(self) -> str:
        return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.model_type])

    @property
    def verdict(self) -> str:
        return f"refused: {self.refused}" if self.refused else "exact"


WIDE = {"sliding_window": 400}
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
QUARTER = {**PLAIN, "partial_rotary_factor": 0.25}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
OWN_ATTENTION = "ignores AttentionInterface: it has an attention of its own"
SINKS = "passes s_aux to attention, which is not computed here"
STATES = "has layers of the type linear_attention, which are not computed here"
LOST = "does not hand the ragged batch to attention"
OTHER_LOGITS = "logits over KV pages differ from the model's own"

CASES = [
    Case("Llama", "llama", {}, "grouped queries, untied head"),
    Case("Llama 3", "llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA_3, "attention_bias": True,
                              "mlp_bias": True}, "scaled rotary embedding, biases, tied head",
         ({"rope_parameters": PLAIN}, {"attention_bias": False})),
    Case("Qwen2", "qwen2", {"tie_word_embeddings": True}, "grouped queries, query/key/value biases, tied head"),
    Case("Qwen2, windows", "qwen2", {**_LAYERS, "use_sliding_window": True, "rope_parameters": YARN},
         "window in some layers, YaRN", (WIDE, {"rope_parameters": PLAIN})),
    Case("Qwen3", "qwen3", {}, "grouped queries, query and key norms"),
    Case("Qwen3, windows", "qwen3", {**_LAYERS, "use_sliding_window": True, "attention_bias": True},
         "window in some layers, biases", (WIDE, {"attention_bias": False})),
    Case("Qwen3-MoE", "qwen3_moe", {**EXPERTS, "use_sliding_window": True, "sliding_window": WINDOW},
         "experts, query and key norms, window", (WIDE,)),
    Case("Mistral", "mistral", {"sliding_window": WINDOW}, "grouped queries, window", (WIDE,)),
    Case("Mistral, no window", "mistral", {"sliding_window": None}, "grouped queries"),
    Case("Mixtral", "mixtral", {"sliding_window": WINDOW, "num_local_experts": 4}, "experts, window", (WIDE,)),
    Case("Gemma", "gemma", {"tie_word_embeddings": True, "num_key_value_heads": 1}, "one key head, tied head"),
    Case("Gemma 2", "gemma2", {**_LAYERS, "tie_word_embeddings": True, "query_pre_attn_scalar": 1},
         "soft-cap 50 in attention and 30 on logits, window in some layers, tied head",
         ({"attn_logit_softcapping": None}, {"final_logit_softcapping": None}, WIDE)),
    Case("Gemma 2, no soft-cap", "gemma2", {**_LAYERS, "query_pre_attn_scalar": 1, "attn_logit_softcapping": None},
         "window in some layers", (WIDE, {"attn_logit_softcapping": 50.0})),
    Case("Gemma 3", "gemma3_text", {**_LAYERS, "tie_word_embeddings": True, "query_pre_attn_scalar": 8},
         "window in some layers, two rotary bases, query and key norms, tied head", (WIDE,)),
    Case("Phi-2", "phi", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
         "partial rotary embedding, biases", ({"rope_parameters": {**PLAIN, "partial_rotary_factor": 1.0}},)),
    Case("Phi-3", "phi3", {"sliding_window": WINDOW}, "fused projections, grouped queries, window", (WIDE,)),
    Case("Phi-4-mini", "phi3", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5},
                                "tie_word_embeddings": True}, "partial rotary embedding, tied head",
         ({"rope_parameters": {**PLAIN, "partial_rotary_factor": 1.0}},)),
    Case("SmolLM3", "smollm3", {"no_rope_layers": [1, 0], "tie_word_embeddings": True},
         "layers without rotary embedding, tied head", ({"no_rope_layers": [1, 1]},)),
    Case("SmolLM3, windows", "smollm3", {**_LAYERS, "use_sliding_window": True, "no_rope_layers": [1, 0],
                                         "attention_bias": True},
         "window in some layers, layers without rotary embedding, biases", (WIDE, {"attention_bias": False})),
    Case("GPT-NeoX", "gpt_neox", {"rope_parameters": QUARTER},
         "partial rotary embedding, biases, parallel residual", ({"use_parallel_residual": False},)),
    Case("GPT-NeoX, sequential", "gpt_neox", {"use_parallel_residual": False, "attention_bias": False},
         "sequential residual, no biases"),
    Case("GPT-2", "gpt2", {"tie_word_embeddings": True, "scale_attn_by_inverse_layer_idx": True},
         "learned positions, biases, scale by layer, tied head", ({"scale_attn_by_inverse_layer_idx": False},)),
    Case("OPT", "opt", {"tie_word_embeddings": True}, "learned positions with an offset, biases, tied head"),
    Case("OPT-350m", "opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
         "norms after, projected embeddings", ()),
    Case("OLMo", "olmo", {"clip_qkv": 4.0}, "clipped queries, keys and values", ({"clip_qkv": None},)),
    Case("OLMo 2", "olmo2", {"num_key_value_heads": 4}, "norms over all heads' queries and keys"),
    Case("OLMo 3", "olmo3", _LAYERS, "window in some layers, norms over all heads' queries and keys", (WIDE,)),
    Case("Granite", "granite", {"attention_multiplier": 0.4, "residual_multiplier": 0.5, "logits_scaling": 3.0,
                                "embedding_multiplier": 2.0, "attention_bias": True}, "multipliers, biases",
         ({"attention_multiplier": 0.35}, {"attention_bias": False})),
    Case("Granite-MoE", "granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}, "experts, multipliers"),
    Case("Cohere 2", "cohere2", _LAYERS, "window in some layers, no rotary embedding in the others", (WIDE,)),
    Case("StarCoder 2", "starcoder2", {"sliding_window": WINDOW}, "window, biases", (WIDE,)),
    Case("GLM-4", "glm4", {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}, "attention_bias": True},
         "partial rotary embedding, biases", ({"attention_bias": False},)),
    Case("EXAONE 4", "exaone4", _LAYERS, "window in some layers, no rotary embedding in the others", (WIDE,)),
    Case("DeepSeek-V3", "deepseek_v3", {
        "num_key_value_heads": 4, "head_dim": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2,
        "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    }, "latent attention: keys and values of different widths; experts"),
    Case("Qwen2-MoE, windows", "qwen2_moe", {**_LAYERS, **EXPERTS, "use_sliding_window": True},
         "experts, window in some layers", refused="has windows that it does not pass to attention"),
    Case("StableLM", "stablelm", {"rope_parameters": QUARTER}, "partial rotary embedding", refused=LOST),
    Case("Nemotron", "nemotron", {}, "partial rotary embedding", refused=LOST),
    Case("GPT-OSS", "gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1, **_LAYERS}, "attention sinks",
         refused=SINKS),
    Case("BLOOM", "bloom", {}, "position biases (ALiBi)", refused=OWN_ATTENTION),
    Case("Falcon", "falcon", {}, "rotary embedding", refused=OWN_ATTENTION),
    Case("Falcon, ALiBi", "falcon", {"alibi": True}, "position biases (ALiBi)", refused=OWN_ATTENTION),
    Case("GPT-J", "gptj", {}, "partial rotary embedding", refused=OWN_ATTENTION),
    Case("MPT", "mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}, "position biases (ALiBi)", refused=OWN_ATTENTION),
    Case("Llama 4", "llama4_text", {"layer_types": ["chunked_attention", "full_attention"]}, "chunks of attention",
         refused="has layers of the type chunked_attention, which are not computed here"),
    Case("Llama 4, no chunks", "llama4_text", {"layer_types": ["full_attention"] * 2},
         "temperature by place", refused="scales queries by their place in the batch"),
    Case("LFM2", "lfm2", {"layer_types": ["conv", "full_attention"]}, "convolutions",
         refused="has layers of the type conv, which are not computed here"),
    Case("Mamba", "mamba", {"state_size": 4}, "a state instead of attention", refused=STATES),
    Case("Qwen3-Next", "qwen3_next", {**EXPERTS, "layer_types": ["linear_attention", "full_attention"]},
         "a state in some layers, experts", refused=STATES),
    Case("BERT, both ways", "bert", {"is_decoder": False}, "attention to what comes after", refused=OTHER_LOGITS),
    Case("BART", "bart", {}, "positions that are counted, not given", refused=OTHER_LOGITS),
]  # fmt: skip
