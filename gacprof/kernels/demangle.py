"""Mangled C++ names as readable ones, as far as kernel names need it.

Nsight tools and symbol tables may give ``_ZN13pytorch_flash16flash_fwd_kernelI…``, where the
PyTorch profiler gives ``pytorch_flash::flash_fwd_kernel<…>``. Only the function's path and its
template arguments are of interest, so its parameters and return type are dropped. The grammar
is the "Mangling" chapter of the Itanium C++ ABI; what it leaves out (expressions in template
arguments) makes :func:`demangle` return None rather than a guess.
"""

from __future__ import annotations

import re

_BUILTIN = {
    **{"v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char"},
    **{"h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int"},
    **{"j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long"},
    **{"y": "unsigned long long", "n": "__int128", "o": "unsigned __int128"},
    **{"f": "float", "d": "double", "e": "long double", "g": "__float128", "z": "..."},
}
_BUILTIN_D = {"h": "half", "n": "decltype(nullptr)", "a": "auto", "i": "char32_t", "s": "char16_t"}
_STD = {"a": "std::allocator", "b": "std::basic_string", "s": "std::string"}
_QUALIFIER = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile", "r": " restrict"}
_BASE36 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
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
    except (_NotUnderstoodError, IndexError, RecursionError):
        return None


def identifiers(name: str) -> list[str]:
    """All length-prefixed identifiers of a mangled name, in order. Never fails."""
    found, at = [], 0
    while match := re.compile(r"\d+").search(name, at):
        digits = match.group()
        at = match.end()
        for start in range(len(digits)):  # "Li1289flash_fwd": the length is a suffix of a number
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

    def peek(self, size: int = 1) -> str:
        return self.text[self.at : self.at + size]

    def take(self, wanted: str) -> bool:
        if self.text.startswith(wanted, self.at):
            self.at += len(wanted)
            return True
        return False

    def match(self, pattern: str) -> str | None:
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def remember(self, text: str) -> str:
        self.seen.append(text)
        return text

    # names ---------------------------------------------------------------------------

    def name(self) -> str:
        if self.take("N"):
            return self.nested()
        if self.take("Z"):
            return self.local()
        if self.peek() == "S" and self.peek(2) != "St":
            base = self.substitution()
        else:
            prefix = "std::" if self.take("St") else ""
            base = prefix + self.word()
            if self.peek() == "I":
                self.remember(base)
        return base + self.arguments() if self.peek() == "I" else base

    def nested(self) -> str:
        while self.match("[rVKRO]"):
            pass
        text = ""
        while not self.take("E"):
            kept = True
            if self.peek() == "S" and self.peek(2) != "St":
                text, kept = self.substitution(), False
            elif self.peek() == "I":
                text += self.arguments()
            elif self.take("St"):
                text, kept = "std", False
            elif self.peek() == "T":
                text = self.parameter()
            else:
                text += ("::" if text else "") + self.word()
            if kept and self.peek() != "E":
                self.remember(text)
        return text

    def local(self) -> str:
        """A name inside a function: ``Z <function> E <name>``."""
        function = self.name()
        while not self.take("E"):
            self.type()
        if self.take("s"):
            return function
        self.match(r"d\d*_")
        inside = self.name()
        self.match(r"_\d|__\d+_")
        return f"{function}::{inside}"

    def word(self) -> str:
        """One unqualified name: an identifier, an operator, a constructor, a lambda."""
        self.take("L")  # internal linkage
        if size := self.match(r"\d+"):
            start = self.at
            self.at += int(size)
            if self.at > len(self.text):
                raise _NotUnderstoodError
            word = self.text[start : self.at]
            while self.take("B"):  # abi tag
                self.word()
            return "(anonymous namespace)" if word.startswith("_GLOBAL__N_") else word
        if self.take("Ul"):
            while not self.take("E"):
                self.type()
            self.match(r"\d*_")
            return "{lambda}"
        if self.match(r"Ut\d*_"):
            return "{unnamed}"
        if self.match("[CD][0-5]"):
            return "{constructor}"
        if self.match("[a-z][a-zA-Z]"):
            return "{operator}"
        raise _NotUnderstoodError

    def substitution(self) -> str:
        self.take("S")
        if letter := self.match("[a-z]"):
            if letter not in _STD:
                raise _NotUnderstoodError
            return _STD[letter]
        digits = self.match("[0-9A-Z]*_")
        if digits is None:
            raise _NotUnderstoodError
        index = 0
        for digit in digits[:-1]:
            index = index * 36 + _BASE36.index(digit)
        return self.seen[index + 1 if digits != "_" else 0]

    def parameter(self) -> str:
        found = self.match(r"T\d*_")
        if found is None:
            raise _NotUnderstoodError
        return found

    # template arguments and types --------------------------------------------------------

    def arguments(self) -> str:
        """``I … E`` as ``<a, b>``; an argument pack is spliced in."""
        self.at += 1
        listed = self.until_end()
        return f"<{', '.join(listed)}{' ' if listed and listed[-1].endswith('>') else ''}>"

    def until_end(self) -> list[str]:
        listed: list[str] = []
        while not self.take("E"):
            if self.take("J"):
                listed += self.until_end()
            elif self.take("L"):
                listed.append(self.literal())
            elif self.take("XadL"):
                listed.append(self.literal())
                if not self.take("E"):
                    raise _NotUnderstoodError
            else:
                listed.append(self.type())
        return listed

    def literal(self) -> str:
        if self.take("_Z"):
            text = "&" + self.name()
            while not self.take("E"):
                self.type()
            return text
        kind = self.type()
        value = self.match(r"n?[0-9a-f]*E")
        if value is None:
            raise _NotUnderstoodError
        value = value[:-1].replace("n", "-")
        if kind == "bool":
            return "true" if value == "1" else "false"
        suffix = {"unsigned int": "u", "long": "l", "unsigned long": "ul"}.get(kind)
        if kind == "int" or suffix:
            return value + (suffix or "")
        return f"({kind}){value}"

    def type(self) -> str:
        letter = self.peek()
        if letter in _BUILTIN:
            self.at += 1
            return _BUILTIN[letter]
        if letter == "D":
            return self.special()
        if letter in _QUALIFIER:
            self.at += 1
            return self.remember(self.type() + _QUALIFIER[letter])
        if letter == "F":
            return self.function()
        if letter == "T":
            return self.templated(self.remember(self.parameter()))
        if letter == "S" and self.peek(2) != "St":
            return self.templated(self.substitution())
        if letter == "A":
            size = self.match(r"A\d*_")
            return self.remember(f"{self.type()} [{(size or 'A_')[1:-1]}]")
        if letter == "M":
            self.at += 1
            return self.remember(f"{self.type()}::*{self.type()}")
        if letter == "u":
            self.at += 1
            return self.remember(self.word())
        if letter in "NZ" or letter.isdigit() or self.peek(2) == "St":
            return self.remember(self.name())
        raise _NotUnderstoodError

    def templated(self, text: str) -> str:
        return self.remember(text + self.arguments()) if self.peek() == "I" else text

    def special(self) -> str:
        if found := self.match(r"DF\d+_"):
            return f"_Float{found[2:-1]}"
        if self.take("DF16b"):
            return "__bf16"
        if self.take("Dp"):
            return self.remember(self.type())
        name = _BUILTIN_D.get(self.peek(2)[1:])
        if name is None:
            raise _NotUnderstoodError
        self.at += 2
        return name

    def function(self) -> str:
        self.at += 1
        self.take("Y")
        parts = []
        while not self.take("E"):
            parts.append(self.type())
        return self.remember(f"{parts[0]} ({', '.join(p for p in parts[1:] if p != 'void')})")
