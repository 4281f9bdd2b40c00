"""Damage to files: bytes for all, structure for JSON. Seeded, so that a finding can be repeated."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 1e300, -0.0, 1e-300,
    "", "x" * 5000, "\x1b[31m", "../../etc/passwd", "/dev/zero", "a\nb", "é\u202e", [], {},
    [[[[[[]]]]]], {"a": {"a": {}}}, [0] * 1000, [2**40, 0], [1, -1], "float16", "int4",
)  # fmt: skip
"""What no author of a file would write, or only for another field."""
RAW_VALUES = ("NaN", "Infinity", "-Infinity", "9" * 5000, '"\\ud800"', "[" * 3000 + "]" * 3000)
"""Text that takes a value's place as it stands: no value of Python's writes it."""
PLACEHOLDER = "gacprof-fuzz-placeholder"


def damaged_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flipped, cut, doubled, swapped, or filled with something else, at one to four places."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(out) + 1)
        size = min(draw.choice((1, 2, 8, 64, 512)), len(out) - at)
        kind = draw.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del out[at : at + size]
        elif kind == 2:
            out[at:at] = out[at : at + size] or b"\0"
        elif kind == 3:
            out[at : at + size] = draw.randbytes(size)
        elif kind == 4:
            del out[at:]
        elif kind == 5:
            other = draw.randrange(len(out) + 1)
            out[at : at + size] = out[other : other + size]
    return bytes(out)


def damaged_json(data: bytes, draw: random.Random) -> bytes:
    """One to three values replaced, dropped, doubled or renamed somewhere in the tree."""
    tree = json.loads(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        holder, key = _somewhere(tree, draw)
        if holder is None:
            return draw.choice(RAW_VALUES).encode()
        _change(holder, key, draw)
    text = json.dumps(tree)
    return text.replace(f'"{PLACEHOLDER}"', draw.choice(RAW_VALUES)).encode()


def damaged_safetensors(data: bytes, draw: random.Random) -> bytes:
    """The header's JSON damaged, its length put right; or plain bytes."""
    if draw.random() < 0.3:
        return damaged_bytes(data, draw)
    size = int.from_bytes(data[:8], "little")
    header = damaged_json(data[8 : 8 + size], draw)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def damaged_lines(data: bytes, draw: random.Random) -> bytes:
    """One line of JSON Lines damaged as JSON, dropped, doubled or torn."""
    lines = data.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        lines[at] = damaged_json(lines[at], draw) + b"\n"
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at:at] = [lines[draw.randrange(len(lines))]]
    else:
        lines[at] = damaged_bytes(lines[at], draw)
    return b"".join(lines)


def of_json(structured: Callable[[bytes, random.Random], bytes]) -> Callable[..., bytes]:
    """Structure mostly, bytes now and then."""

    def damaged(data: bytes, draw: random.Random) -> bytes:
        return damaged_bytes(data, draw) if draw.random() < 0.2 else structured(data, draw)

    return damaged


def _somewhere(tree: Any, draw: random.Random) -> tuple[Any, Any]:
    """(holder, key) of a value at a random depth; (None, None) where the tree itself is one."""
    holder, key, node = None, None, tree
    while isinstance(node, dict | list) and node:
        holder = node
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        node = holder[key]
        if draw.random() < 0.25:
            break
    return holder, key


def _change(holder: Any, key: Any, draw: random.Random) -> None:
    kind = draw.randrange(6)
    if kind <= 2:
        holder[key] = deepcopy(draw.choice(ODD_VALUES))  # a later change may be within it
    elif kind == 3:
        holder[key] = PLACEHOLDER
    elif kind == 4:
        del holder[key]
    elif isinstance(holder, dict):
        holder[draw.choice(("", "x" * 300, f"{key}\x1b[2J", str(key).upper()))] = deepcopy(
            holder[key]
        )
    else:
        holder.insert(draw.randrange(len(holder) + 1), deepcopy(holder[key]))
