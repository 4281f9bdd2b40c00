"""Mangled C++ names as readable ones, as far as kernel names need it.

Nsight tools and symbol tables may give ``_ZN13pytorch_flash16flash_fwd_kernelI…``, where the
PyTorch profiler gives ``pytorch_flash::flash_fwd_kernel<…>``. Only the function's path and its
template arguments are of interest, so parameters and return type are dropped. The grammar is
the "Mangling" chapter of the Itanium C++ ABI; what is left out of it (expressions in template
arguments) gives None rather than a guess. The C++ runtime's own demangler is no substitute: the
profiler does not ask it about names above 1024 characters (kineto, Demangle.cpp), and it would
refuse them. Those of CUTLASS 3 are longer.
"""

from __future__ import annotations

import re

_BUILTIN = {
    **{"v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char"},
    **{"h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int"},
    **{"j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long"},
    **{"y": "unsigned long long", "n": "__int128", "o": "unsigned __int128"},
    **{"f": "float", "d": "double", "e": "long double", "g": "__float128", "z": "..."},
    **{"Dh": "half", "Dn": "decltype(nullptr)", "Da": "auto", "Di": "char32_t", "Ds": "char16_t"},
    **{"DF16b": "__bf16", "DF16_": "_Float16", "DF32_": "_Float32", "DF64_": "_Float64"},
}
_STD = {"a": "std::allocator", "b": "std::basic_string", "s": "std::string"}
_QUALIFIER = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile", "r": " restrict"}
_UNNAMED = {
    r"Ut\d*_": "{unnamed}",
    r"[CD][0-5]": "{constructor}",
    r"[a-z][a-zA-Z]": "{operator}",
}
_LONGEST = 20_000
"""Characters; longer names are refused, so that a foreign file cannot exhaust the stack."""


class _NotUnderstoodError(Exception):
    pass


def demangle(name: str) -> str | None:
    """``ns::function<args>`` of a mangled name; None where it is not understood."""
    symbol = re.sub(r"(\.\w+)+$", "", name)  # .cold, .part.0, .kd
    if not symbol.startswith("_Z") or len(symbol) > _LONGEST:
        return None
    try:
        return _Reader(symbol[2:]).name()
    except (_NotUnderstoodError, IndexError, ValueError, RecursionError):
        return None


def identifiers(name: str) -> list[str]:
    """All length-prefixed identifiers of a mangled name, in order. Never fails."""
    found, at = [], 0
    while match := re.compile(r"\d+").search(name, at):
        digits = match.group()
        at = match.end()
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
        self.text = text
        self.at = 0
        self.seen: list[str] = []

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

    def remember(self, text: str) -> str:
        self.seen.append(text)
        return text

    def until_end(self) -> list[str]:
        """The types up to ``E``."""
        listed = []
        while not self.take("E"):
            listed.append(self.type())
        return listed

    def name(self) -> str:
        if self.take("N"):
            return self.nested()
        if self.take("Z"):
            return self.local()
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
            elif self.sees("T"):
                text = self.need(r"T\d*_")
            else:
                text += ("::" if text else "") + self.word()
            if kept and not self.sees("E"):
                self.remember(text)
        return text

    def local(self) -> str:
        """A name inside a function: ``Z <function> E <name>``."""
        function = self.name()
        self.until_end()
        if self.take("s"):
            return function
        self.take(r"d\d*_")
        inside = self.name()
        self.take(r"_\d|__\d+_")
        return f"{function}::{inside}"

    def word(self) -> str:
        """One unqualified name: an identifier, an operator, a constructor, a lambda."""
        self.take("L")  # internal linkage
        if size := self.take(r"\d+"):
            word = self.text[self.at : self.at + int(size)]
            self.at += int(size)
            if self.at > len(self.text):
                raise _NotUnderstoodError
            while self.take("B"):  # abi tag
                self.word()
            return "(anonymous namespace)" if word.startswith("_GLOBAL__N_") else word
        if self.take("Ul"):
            self.until_end()
            self.take(r"\d*_")
            return "{lambda}"
        for pattern, word in _UNNAMED.items():
            if self.take(pattern):
                return word
        raise _NotUnderstoodError

    def substitution(self) -> str:
        code = self.need("S(?:[a-z]|[0-9A-Z]*_)")[1:]
        if code in _STD:
            return _STD[code]
        if not code.endswith("_"):
            raise _NotUnderstoodError
        return self.seen[int(code[:-1], 36) + 1 if code != "_" else 0]

    def arguments(self) -> str:
        """``I … E`` as ``<a, b>``."""
        self.need("I")
        listed = self.until_end_of_arguments()
        return f"<{', '.join(listed)}{' ' if listed and listed[-1].endswith('>') else ''}>"

    def until_end_of_arguments(self) -> list[str]:
        """Types and values up to ``E``; an argument pack is spliced in."""
        listed: list[str] = []
        while not self.take("E"):
            if self.take("J"):
                listed += self.until_end_of_arguments()
            elif self.take("L"):
                listed.append(self.literal())
            elif self.take("XadL"):
                listed.append(self.literal())
                self.need("E")
            else:
                listed.append(self.type())
        return listed

    def literal(self) -> str:
        """``i128E`` as ``128``; of what is neither a number nor a function, with its type."""
        if self.take("_Z"):
            text = "&" + self.name()
            self.until_end()
            return text
        kind = self.type()
        value = self.need(r"n?[0-9a-f]*E")[:-1].replace("n", "-")
        if kind == "bool":
            return "true" if value == "1" else "false"
        return value if kind in _BUILTIN.values() else f"({kind}){value}"

    def type(self) -> str:
        if code := self.take(r"DF\d+[b_]|D[nhais]|[a-qstv-z]"):
            if code not in _BUILTIN:
                raise _NotUnderstoodError
            return _BUILTIN[code]
        if letter := self.take("[PROKVr]"):
            return self.remember(self.type() + _QUALIFIER[letter])
        if self.take("F"):
            self.take("Y")
            result, *parameters = self.until_end()
            listed = ", ".join(kind for kind in parameters if kind != "void")
            return self.remember(f"{result} ({listed})")
        if self.sees("T"):
            return self.templated(self.remember(self.need(r"T\d*_")))
        if self.sees("S(?!t)"):
            return self.templated(self.substitution())
        if size := self.take(r"A\d*_"):
            return self.remember(f"{self.type()} [{size[1:-1]}]")
        if self.take("M"):
            return self.remember(f"{self.type()}::*{self.type()}")
        if self.take("u"):
            return self.remember(self.word())
        if self.take("Dp"):
            return self.remember(self.type())
        if self.sees(r"[NZ\d]|St"):
            return self.remember(self.name())
        raise _NotUnderstoodError

    def templated(self, text: str) -> str:
        return self.remember(text + self.arguments()) if self.sees("I") else text
