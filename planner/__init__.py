"""Plan how to serve a large language model with vLLM, before renting a GPU."""

__version__ = "0.1.0"
