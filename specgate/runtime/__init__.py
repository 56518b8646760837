"""One HuggingFace model on one device: loading, KV pages, ragged forward, sampling, the engine thread."""
