"""A kernel's name taken apart as C++: the function's path and its template arguments.

Names come from several tools, each with its own spelling. The PyTorch profiler prints
``void f<128, false>(Params)``, Nsight Compute ``f<(int)128, (bool)0>``, symbol tables
``_Z1fILi128ELb0EEvP6Params``, and tables cut long names short. All of them end up as the
same :class:`Signature`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gacprof.kernels.demangle import demangle, identifiers

_CAST = re.compile(r"\((?:unsigned )?(?:int|long|short|char|bool)(?: long)?\)(-?\d+)")
_BOOL_CAST = re.compile(r"\(bool\)([01])")
_LAUNCHER = re.compile(
    r"^(?:cutlass::(?:Kernel2?|device_kernel)|"
    r"(?:\w+::)*enable_\w*sm\w+)$"
)
"""Entry points that only carry the kernel proper as their first template argument."""
_OPEN, _CLOSE = "<({[", ">)}]"


@dataclass(frozen=True)
class Signature:
    """``path`` is the function's qualified name without template arguments."""

    text: str
    path: str
    arguments: tuple[str, ...] = ()

    @property
    def integers(self) -> list[int]:
        return [int(a) for a in self.arguments if re.fullmatch(r"-?\d+", a)]

    @property
    def booleans(self) -> list[bool]:
        return [a == "true" for a in self.arguments if a in ("true", "false")]


def take_apart(name: str) -> Signature:
    """Never fails: what is not C++ comes back as a path without arguments."""
    text = " ".join(name.split())
    if text.startswith("_Z"):
        readable = demangle(text)
        if readable is None:
            return Signature(text, "::".join(identifiers(text)) or text)
        text = readable
    text = _BOOL_CAST.sub(lambda m: "true" if m.group(1) == "1" else "false", text)
    text = _CAST.sub(r"\1", text)
    text = re.sub(r"(?<=\d)u?l?l?(?=[,>])", "", text)
    signature = Signature(text, *_path_and_arguments(_head(text)))
    while _LAUNCHER.match(signature.path) and signature.arguments:
        inner = signature.arguments[0]
        signature = Signature(text, *_path_and_arguments(inner))
    return signature


def split_arguments(text: str) -> list[str]:
    """``a, b<c, d>`` → ``["a", "b<c, d>"]``."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def template(text: str) -> tuple[str, list[str]]:
    """``ns::name<a, b>`` → ``("ns::name", ["a", "b"])``."""
    path, arguments = _path_and_arguments(text)
    return path, list(arguments)


def _head(text: str) -> str:
    """The text without return type and parameters."""
    marked = text.replace("(anonymous namespace)", "{anonymous}")
    depth = 0
    start, end = 0, len(marked)
    for at, letter in enumerate(marked):
        if letter == "(" and depth == 0:
            if at > start:
                end = at
                break
            depth += 1
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == " " and depth == 0 and re.match(r" [A-Za-z_{]", marked[at:]):
            start = at + 1
    return marked[start:end]


def _path_and_arguments(head: str) -> tuple[str, tuple[str, ...]]:
    """Split off the last group of template arguments, and drop those of enclosing classes."""
    cut = len(head)
    if "<" in head:
        depth = 0
        opening = head.index("<")
        for at, letter in enumerate(head):
            if letter == "<":
                if depth == 0:
                    opening = at
                depth += 1
            elif letter == ">" and head[at - 1] != "-":
                depth -= 1
        cut = opening
    path = re.sub(r"<.*>", "", head[:cut])
    inside = head[cut + 1 :].rstrip()
    inside = inside[:-1] if inside.endswith(">") else re.sub(r"[.…]+$", "", inside)
    return path, tuple(split_arguments(inside))
