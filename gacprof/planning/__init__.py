"""Inventory + cliff map + budget → one chosen size per dim."""
