"""The prompts and requests that measurements are made of."""
