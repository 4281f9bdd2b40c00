"""What a serving engine does with a model's sizes, from its config alone."""
