"""What engines ask of the sizes that one rank holds: one table an engine, one evaluator.

``configs`` reads a config, ``model`` makes its products on given ranks, ``table`` holds demands,
``evaluate`` tries them.
"""
