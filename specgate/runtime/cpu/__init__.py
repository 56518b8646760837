"""What only a CPU has: faster products and norms of few rows, recorded forwards, a warm-up."""
