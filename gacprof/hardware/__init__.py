"""What is known of GPUs, whoever runs them: one entry of a table a GPU, one an architecture.

``datasheet`` finds a GPU by any of its names (``gpus.toml``); ``architectures`` says what the
kernels of its architecture ask of sizes (``architectures.toml``). Every value has a source.
"""
