"""Arithmetic on stored factors: what they hold, and which entries to give up."""
