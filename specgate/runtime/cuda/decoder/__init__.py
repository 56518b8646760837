"""A decoder of Llama's form by our own kernels: a whole draft in one launch, and a target's forwards of few rows."""
