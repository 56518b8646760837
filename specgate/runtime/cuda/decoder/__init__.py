"""A decoder of Llama's form by kernels of its own."""
