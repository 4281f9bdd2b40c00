"""The whole chain once, on the device at hand, with a model that shows what it is for."""
