"""vLLM versions: their order, and the era that a date or an unknown build falls to."""
