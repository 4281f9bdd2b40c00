"""How many parts FlashAttention-2 splits the keys of a call into, by its public rule.

The rule is ``num_splits_heuristic`` of ``flash_api.cpp`` (Dao-AILab/flash-attention, copied by
PyTorch). It holds without dropout, and where a caller names no number of its own, as SDPA does.
"""

import ctypes

SPLIT_QUERIES = 64  # queries of a block of the kernel that splits keys
SPLIT_KEYS = {64: 256, 128: 128, 256: 64}  # keys of such a block, by its largest head_dim
BLOCKS_PER_SM = 2  # of 128 threads
MAX_SPLITS = 128
BUSY = 0.8  # share of the GPU from which on keys stay whole
ENOUGH = 0.85  # of the highest efficiency, which fewer parts may have


def single(number: float) -> float:
    """Return a number as a C++ ``float`` holds it: ties between parts fall by its rounding."""
    return ctypes.c_float(number).value


def key_parts(
    head_dim: int, q_len: int, kv_len: int, *, batch: int, heads: int, kv_heads: int, sms: int
) -> int:
    """Return the parts into which the keys are split so that blocks fill a GPU of ``sms``
    multiprocessors; 1: another kernel takes them whole.

    >>> key_parts(107, 1024, 1024, batch=1, heads=8, kv_heads=8, sms=108)  # an A100
    3
    >>> key_parts(107, 1024, 1024, batch=1, heads=32, kv_heads=32, sms=108)
    1
    """
    if q_len == 1 and heads > kv_heads:  # the query heads of a key head become its queries
        q_len, heads = heads // kv_heads, kv_heads
    blocks = batch * heads * -(-q_len // SPLIT_QUERIES)
    slots = BLOCKS_PER_SM * sms
    if blocks >= BUSY * slots:
        return 1
    block_keys = next(keys for last, keys in SPLIT_KEYS.items() if head_dim <= last)
    key_blocks = -(-kv_len // block_keys)
    fewest: dict[int, int] = {}  # by blocks of keys in a part; more parts would be empty
    for parts in range(1, min(MAX_SPLITS, slots, key_blocks) + 1):
        fewest.setdefault(-(-key_blocks // parts), parts)
    efficiency = {}
    for parts in fewest.values():
        waves = single(blocks * parts / slots)
        efficiency[parts] = single(waves / -(-blocks * parts // slots))
    highest = max(efficiency.values())
    return min(parts for parts, share in efficiency.items() if share >= ENOUGH * highest)
