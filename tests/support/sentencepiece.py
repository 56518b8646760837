"""A tokenizer of Llama 2's kind, tiny: a text gets a space in front, which decoding strips, and bytes are tokens."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from orchestrator.decode.text import TextTokenizer

END, BEGIN, TURN = "</s>", "<s>", "[INST]"
WORDS = ("▁The", "▁capital", "▁of", "▁France", "▁is", "▁Paris", "▁▁", "▁the", "▁fox", "▁,", ".", "é", "日")
TEMPLATE = "<s>{% for message in messages %}[INST] {{ message.content }}{% endfor %}[INST]"


def sentencepiece_backend() -> Tokenizer:
    """Return it with 0 as its end, two more special tokens, a token a byte, and the words letter by letter."""
    tokens = dict.fromkeys([END, "<unk>", BEGIN, *(f"<0x{byte:02X}>" for byte in range(256))])
    tokens |= dict.fromkeys(word[:size] for word in WORDS for size in range(1, len(word) + 1))
    tokens |= dict.fromkeys("".join(WORDS))
    merges = dict.fromkeys((word[:size], word[size]) for word in WORDS for size in range(1, len(word)))
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[*merges], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([END, BEGIN, TURN])
    backend.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, vocab[BEGIN])])
    return backend


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Return it as a model has it, with a chat template that begins each turn with a special token."""
    return PreTrainedTokenizerFast(
        tokenizer_object=sentencepiece_backend(), bos_token=BEGIN, eos_token=END, chat_template=TEMPLATE
    )


def ids_of(tokenizer: TextTokenizer, tokens: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of tokens as the vocabulary spells them."""
    return tuple(tokenizer.backend.token_to_id(token) for token in tokens)
