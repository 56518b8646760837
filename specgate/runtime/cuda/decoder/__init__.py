"""A decoder of Llama's form by our own kernels: a draft of several tokens, and a target's forwards of few rows."""
