"""A model's facts: architecture, exact parameter counts, quantisation; from the catalog, a folder or the hub."""
