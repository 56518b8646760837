"""What only CUDA has: packed inputs, and graphs with their check."""
