"""The steps of ``scripts/gpu_day``, and what runs them one after the other, each in a process of its own."""
