"""Compression of dense models: low-rank factors and narrower MLPs, at sizes served well."""
