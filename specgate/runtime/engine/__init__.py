"""The thread that owns the device: the model runner, its checks, and what makes one of a loaded model."""
