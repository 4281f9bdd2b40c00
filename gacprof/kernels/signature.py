"""A kernel's name as C++: demangled as far as needed, then taken apart.

Nsight tools and symbol tables may give ``_ZN13pytorch_flash16flash_fwd_kernelI…``, where the
PyTorch profiler gives ``pytorch_flash::flash_fwd_kernel<…>``. Only the function's path and its
template arguments are of interest. This is the part of the Itanium C++ ABI ("Mangling") that
they are made of: nested names, substitutions, literals, pointers. All else (lambdas, operators,
expressions, arrays, function types) gives None rather than a guess. The C++ runtime's own
demangler has no bound on its work: each substitution can double the text, so that 338 characters
ask for gigabytes.

Names come from several tools, each with its own spelling. The PyTorch profiler prints
``void f<128, false>(Params)``, Nsight Compute ``f<(int)128, (bool)0>``, symbol tables
``_Z1fILi128ELb0EEvP6Params``, and tables cut long names short. All of them end up as the
same :class:`Signature`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BUILTIN = {
    **{"v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char"},
    **{"h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int"},
    **{"j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long"},
    **{"y": "unsigned long long", "f": "float", "d": "double", "e": "long double"},
    **{"Dh": "half", "Dn": "decltype(nullptr)", "DF16b": "__bf16", "DF16_": "_Float16"},
}
_QUALIFIER = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile", "r": " restrict"}
LONGEST = 20_000
"""Characters of a mangled name; the longest known, of CUTLASS 3, have some 10,000."""
MOST_WORK = 2_000_000
"""Characters that reading one name may make, all substitutions together."""


class _NotUnderstoodError(Exception):
    pass


def demangle(name: str) -> str | None:
    """``ns::function<args>`` of a mangled name; None where it is not understood or too large."""
    if not name.startswith("_Z") or len(name) > LONGEST:
        return None
    symbol = re.sub(r"(\.\w+)+$", "", name)  # .cold, .part.0, .kd
    try:
        return _Reader(symbol[2:]).name()
    except (_NotUnderstoodError, IndexError, ValueError, RecursionError):
        return None


def identifiers(name: str) -> list[str]:
    """All length-prefixed identifiers of a mangled name, in order. Never fails."""
    found, at = [], 0
    while match := re.compile(r"\d+").search(name, at):
        digits, at = match.group(), match.end()
        for start in range(max(0, len(digits) - 3), len(digits)):  # of "Li1289flash_fwd": 9
            size = int(digits[start:])
            word = name[at : at + size]
            if 1 < size < 1000 and len(word) == size and re.fullmatch(r"[A-Za-z_]\w*", word):
                found.append(word)
                at += size
                break
    return found


class _Reader:
    """Recursive descent over one mangled name, keeping the list of substitutions."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.seen: list[str] = []
        self.work = 0

    def sees(self, pattern: str) -> re.Match[str] | None:
        return re.compile(pattern).match(self.text, self.at)

    def take(self, pattern: str) -> str | None:
        if found := self.sees(pattern):
            self.at = found.end()
            return found.group()
        return None

    def need(self, pattern: str) -> str:
        found = self.take(pattern)
        if found is None:
            raise _NotUnderstoodError
        return found

    def made(self, text: str) -> str:
        """Count the work. All text that can be referred to again, and doubled, comes by here."""
        self.work += len(text)
        if self.work > MOST_WORK:
            raise _NotUnderstoodError
        return text

    def remember(self, text: str) -> str:
        self.seen.append(self.made(text))
        return text

    def name(self) -> str:
        if self.take("N"):
            return self.nested()
        if self.sees("S(?!t)"):
            base = self.substitution()
        else:
            base = ("std::" if self.take("St") else "") + self.word()
            if self.sees("I"):
                self.remember(base)
        return base + self.arguments() if self.sees("I") else base

    def nested(self) -> str:
        self.take("[rVKRO]*")
        text = ""
        while not self.take("E"):
            kept = True
            if self.sees("S(?!t)"):
                text, kept = self.substitution(), False
            elif self.sees("I"):
                text += self.arguments()
            elif self.take("St"):
                text, kept = "std", False
            else:
                text += ("::" if text else "") + self.word()
            if kept and not self.sees("E"):
                self.remember(text)
        return text

    def word(self) -> str:
        """One identifier."""
        self.take("L")  # internal linkage
        size = int(self.need(r"\d+"))
        word = self.text[self.at : self.at + size]
        self.at += size
        if self.at > len(self.text):
            raise _NotUnderstoodError
        return "(anonymous namespace)" if word.startswith("_GLOBAL__N_") else word

    def substitution(self) -> str:
        code = self.need("S[0-9A-Z]*_")[1:-1]
        return self.made(self.seen[int(code, 36) + 1 if code else 0])

    def arguments(self) -> str:
        """``I … E`` as ``<a, b>``."""
        self.need("I")
        listed = ", ".join(self.values())
        return self.made(f"<{listed}{' ' if listed.endswith('>') else ''}>")

    def values(self) -> list[str]:
        """Types and values up to ``E``; an argument pack is spliced in."""
        listed: list[str] = []
        while not self.take("E"):
            if self.take("J"):
                listed += self.values()
            else:
                listed.append(self.literal() if self.take("L") else self.type())
        return listed

    def literal(self) -> str:
        """``i128E`` as ``128``; of what is no number, with its type."""
        kind = self.type()
        value = self.need(r"n?[0-9a-f]*E")[:-1].replace("n", "-")
        if kind == "bool":
            return "true" if value == "1" else "false"
        return value if kind in _BUILTIN.values() else f"({kind}){value}"

    def type(self) -> str:
        if code := self.take(r"DF16[b_]|D[hn]|[a-fhijlmstv-y]"):
            return _BUILTIN[code]
        if letter := self.take("[PROKVr]"):
            return self.remember(self.type() + _QUALIFIER[letter])
        if self.sees("S(?!t)"):
            text = self.substitution()
            return self.remember(text + self.arguments()) if self.sees("I") else text
        if self.sees(r"[N\d]|St"):
            return self.remember(self.name())
        raise _NotUnderstoodError


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
