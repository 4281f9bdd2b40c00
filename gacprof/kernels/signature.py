"""A kernel's name taken apart as C++: its path, its template arguments, its words.

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
_CARRIER = re.compile(
    r"^cutlass::(?:Kernel2?|device_kernel)<|^(?:\w+::)*enable_\w*sm\w+<"
    r"|\b(?:Gemm|Conv)UniversalAdapter<"
)
"""Entry points and adapters that only carry the kernel proper as their first template argument."""
_UNREADABLE_CARRIER = re.compile(r"^.*::(?=cutlass(?:[3-9]x_sm|_)\d+_)")
"""What stands before a named instance of CUTLASS in a name that could not be demangled."""
_OPEN, _CLOSE = "<({[", ">)}]"


@dataclass(frozen=True)
class Signature:
    """``path`` is the function's qualified name without template arguments."""

    text: str
    path: str
    arguments: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("::", 1)[-1]

    @property
    def words(self) -> list[str]:
        """What the base is made of: ``nvjet_hsh_128x256`` → nvjet, hsh, 128x256."""
        return self.base.split("_")

    @property
    def integers(self) -> list[int]:
        return [int(a) for a in self.arguments if re.fullmatch(r"-?\d+", a)]

    @property
    def booleans(self) -> list[bool]:
        return [a == "true" for a in self.arguments if a in ("true", "false")]

    def argument(self, part: str) -> list[str]:
        """The template arguments of the first argument whose name holds ``part``."""
        return next((template(a)[1] for a in self.arguments if part in a.split("<")[0]), [])


def take_apart(name: str) -> Signature:
    """Never fails: what is not C++ comes back as a path without arguments."""
    text = " ".join(name.split())
    if re.match(r"NK?\d", text):  # as type information and some tables have it
        text = "_Z" + text
    if text.startswith("_Z"):
        readable = demangle(text)
        if readable is None:
            path = "::".join(identifiers(text)) or text
            return Signature(text, _UNREADABLE_CARRIER.sub("", path))
        text = readable
    text = _BOOL_CAST.sub(lambda m: "true" if m.group(1) == "1" else "false", text)
    text = _CAST.sub(r"\1", text)
    text = re.sub(r"(?<=\d)u?l?l?(?=[,>])", "", text)
    head = _head(text)
    while found := _CARRIER.search(head):
        inside = split_arguments(head[found.end() :])
        if not inside:
            break
        head = inside[0]
    path, arguments = template(head)
    return Signature(text, path, tuple(arguments))


def template(text: str) -> tuple[str, list[str]]:
    """``ns::name<a, b>`` → ``("ns::name", ["a", "b"])``; of several groups, the last."""
    cut = text.find("<") if "<" in text else len(text)
    depth = 0
    for at, letter in enumerate(text):
        if letter == "<":
            cut = at if depth == 0 else cut
            depth += 1
        elif letter == ">" and text[at - 1] != "-":
            depth -= 1
    path = re.sub(r"<.*>", "", text[:cut])
    return path, split_arguments(re.sub(r"[.…]+$", "", text[cut + 1 :]))


def split_arguments(text: str) -> list[str]:
    """``a, b<c, d>`` → ``["a", "b<c, d>"]``; what follows a bracket that closes them is left."""
    parts, depth, start, end = [], 0, 0, len(text)
    for at, letter in enumerate(text):
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE and text[at - 1 : at + 1] != "->":
            depth -= 1
            if depth < 0:
                end = at
                break
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:end].strip()
    return [*parts, last] if last else parts


def _head(text: str) -> str:
    """The text without return type and parameters."""
    marked = re.sub(r"\(anonymous namespace\)|<unnamed>", "{anonymous}", text)
    depth = 0
    start, end = 0, len(marked)
    for at, letter in enumerate(marked):
        if letter == "(" and depth == 0 and at > start:
            end = at
            break
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == " " and depth == 0 and re.match(r" [A-Za-z_{]", marked[at : at + 2]):
            start = at + 1
    return marked[start:end]
