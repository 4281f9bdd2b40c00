"""Compare models: whether they are the same function, their speed, their perplexity."""
