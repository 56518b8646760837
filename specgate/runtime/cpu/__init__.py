"""What only a CPU has: a decoder in one call of C, packed products, recorded forwards."""
