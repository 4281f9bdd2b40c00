"""Engines' requirements on sizes: a TOML file an engine, a row a requirement."""
