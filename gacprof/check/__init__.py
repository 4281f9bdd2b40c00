"""Checks of models that are the same, or ought to be: function, speed, perplexity.

``verify`` compares two checkpoints' ``weights``, then their logits; ``bench`` times ``models`` side
by side; ``perplexity`` reads a text.
"""
