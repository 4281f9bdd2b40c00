"""One spelling of a kernel's name, whichever tool printed it.

The PyTorch profiler prints ``void f<128, false>(Params)``, Nsight Compute ``f<(int)128, (bool)0>``,
symbol tables ``_Z1fILi128ELb0EEvP6Params``, and tables cut long names short. Mangled names are read
by ``itanium_demangler``; the C++ runtime's own demangler has no bound on its work.
"""

from __future__ import annotations

import re

import itanium_demangler

LONGEST_TEXT = 100_000
"""Characters of a mangled name as text."""
MOST_SUBSTITUTIONS = 1000
"""Parts of a mangled name that it may refer to again; those of CUTLASS 3 have some 200."""
_MANGLED = re.compile(r"(?:_Z|NK?\d|(?:[4-9]|[1-9]\d+)[A-Za-z_])[\w.$]+")
"""As symbols are, and names of types; ``3x3_conv`` is neither."""
_CAST = re.compile(r"\((?:unsigned )?(?:int|long|short|char|bool)(?: long)?\)(-?\d+)")
_BOOL_CAST = re.compile(r"\(bool\)([01])")
_CARRIER = re.compile(
    r"^cutlass::(?:Kernel2?|device_kernel)<|^(?:\w+::)*enable_\w*sm\w+<"
    r"|\b(?:Gemm|Conv)UniversalAdapter<"
)
"""Entry points and adapters that only carry the kernel proper as their first template argument."""


def readable(name: str) -> str:
    """The name demangled if it is mangled, with constants as C++ writes them."""
    text = " ".join(name.split())
    if _MANGLED.fullmatch(text):
        text = demangle(text) or "::".join(identifiers(text)) or text
    text = _BOOL_CAST.sub(lambda m: "true" if m[1] == "1" else "false", text)
    text = _CAST.sub(r"\1", text)
    return re.sub(r"(?<=\d)u?l?l?(?=[,>])", "", text)


def demangle(name: str) -> str | None:
    """``ns::function<args>`` of a mangled name; None where it is not understood or too long.

    The names of types (``28CutlassGemm…``, ``N7cutlass…``), as libraries keep them for the
    templates of their launchers, lack the prefix.
    """
    cursor = _Cursor(re.sub(r"^_Z(TS)?|(\.\w+)+$", "", name))  # .cold, .part.0, .kd
    try:
        node = itanium_demangler._parse_name(cursor)
        if node is None or cursor.length(node) > LONGEST_TEXT:
            return None
        text = str(itanium_demangler._expand_arg_packs(node))
    except Exception:  # of a parser that was not written for hostile names; RecursionError too
        return None
    return re.sub(r"\b_GLOBAL__N_\w*", "(anonymous namespace)", text)


class _Cursor(itanium_demangler._Cursor):
    """The library's, made fit for untrusted names: each substitution can double the text, so
    that 338 characters ask for gigabytes. Nodes are compared, and their text is measured, in a
    time that grows with the name's own length."""

    def __init__(self, symbol: str) -> None:
        super().__init__(symbol)
        self._added: set[int] = set()
        self._numbers: dict[object, int] = {}
        self._known: dict[int, tuple[int, int, object]] = {}

    def _measured(self, part: object) -> tuple[int, int]:
        """(a number that equal parts share, about how many characters it is as text)."""
        if id(part) not in self._known:
            inner = list(map(self._measured, part)) if isinstance(part, tuple) else []
            key = tuple(number for number, _ in inner) if isinstance(part, tuple) else repr(part)
            number = self._numbers.setdefault(key, len(self._numbers))
            length = sum(size for _, size in inner) or len(str(part))
            self._known[id(part)] = (number, length, part)
        return self._known[id(part)][:2]

    def length(self, node: object) -> int:
        return self._measured(node)[1]

    def add_subst(self, node: object) -> None:
        number = self._measured(node)[0]
        if number not in self._added:
            if len(self._added) == MOST_SUBSTITUTIONS:
                raise NotImplementedError("this many substitutions")
            self._added.add(number)
            self._substs[len(self._substs)] = node


def identifiers(name: str) -> list[str]:
    """All length-prefixed identifiers of a mangled name that cannot be demangled, in order."""
    found, at = [], 0
    while match := re.compile(r"\d+").search(name, at):
        digits, at = match.group(), match.end()
        for start in range(max(0, len(digits) - 3), len(digits)):  # of "Li1289flash_fwd": 9
            word = name[at : at + int(digits[start:])]
            if 1 < len(word) == int(digits[start:]) and re.fullmatch(r"[A-Za-z_]\w*", word):
                # what the compiler put before a named instance of CUTLASS is no part of it
                found.append(re.sub(r"^.*?(?=cutlass(?:[3-9]x_sm|_)\d+_)", "", word))
                at += len(word)
                break
    return found


def head_of(text: str) -> str:
    """The function without return type, parameters and what carries it."""
    marked = re.sub(r"\(anonymous namespace\)|<unnamed>", "{anonymous}", text)
    marked = re.sub(r"(\)?) const\b(?=\(|$)", r"\1", marked)  # of a method
    depth, start, end = 0, 0, len(marked)
    for at, letter in enumerate(marked):
        if letter == "(" and depth == 0 and at > start:
            end = at
            break
        if letter in "<({[":
            depth += 1
        elif letter in ">)}]":
            depth -= 1
        elif letter == " " and depth == 0 and re.match(r" [A-Za-z_{]", marked[at : at + 2]):
            start = at + 1
    head = marked[start:end]
    while found := _CARRIER.search(head):
        head = head[found.end() :]
    return head


def without_arguments(head: str) -> str:
    """``a<b<c>>::d<e, f>`` → ``a::d``; what a table cut short loses its open argument too."""
    kept, depth = [], 0
    for letter in head:
        if depth == 0 and letter in ">,":
            break  # of the carrier
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0 and letter != ">":
            kept.append(letter)
    return "".join(kept).strip()
