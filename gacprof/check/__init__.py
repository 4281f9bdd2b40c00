"""Checks of models that are the same, or ought to be: function, speed, perplexity."""
