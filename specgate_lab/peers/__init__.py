"""HuggingFace without us, each in a process of its own."""
