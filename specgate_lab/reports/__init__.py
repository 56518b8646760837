"""What every results file says of itself."""
