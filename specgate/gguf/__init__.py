"""Models as llama.cpp stores them, each in one file: weights, configuration, tokenizer and chat template."""
