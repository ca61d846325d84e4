"""What each vLLM version accepts and defaults to."""
