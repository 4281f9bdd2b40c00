"""Two models beside each other: the same function, their speed, their perplexity."""
