"""One module per kind of architecture; importing this package registers every family."""
