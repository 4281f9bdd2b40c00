"""Give a kernel's name one spelling, whichever tool printed it.

The PyTorch profiler prints ``void f<128, false>(Params)``, Nsight Compute ``f<(int)128, (bool)0>``,
symbol tables ``_Z1fILi128ELb0EEvP6Params``, and tables cut long names short. Mangled names are read
by the package ``itanium_demangler`` (extra ``measure``); without it only their identifiers are
read.
"""

import re
from importlib.util import find_spec

MAX_MANGLED = 4_000  # characters: substitutions can double them; PyTorch's longest has 2,900
_MANGLED = re.compile(r"(?:_Z|NK?\d|(?:[4-9]|[1-9]\d+)[A-Za-z_])[\w.$]+")
"""Symbols and names of types; ``3x3_conv`` is neither."""
_CAST = re.compile(r"\((?:unsigned )?(?:int|long|short|char|bool)(?: long)?\)(-?\d+)")
_CARRIER = re.compile(
    r"^cutlass(?:__5x_cudnn|_cudnn_\w+)?::(?:Kernel2?|device_kernel)<|^(?:\w+::)*enable_\w*sm\w+<"
    r"|\b(?:Gemm|Conv)UniversalAdapter<"
)
"""Entry points and adapters that only carry the kernel proper as their first template argument."""


def readable(name: str) -> str:
    """Return a name demangled if it is mangled, with constants as C++ writes them."""
    text = " ".join(name.split())
    if _MANGLED.fullmatch(text):
        text = demangle(text) or "::".join(identifiers(text)) or text
    text = text.replace("(bool)1", "true").replace("(bool)0", "false")
    text = _CAST.sub(r"\1", text)
    return re.sub(r"(?<=\d)u?l?l?(?=[,>])", "", text)


def demangle(name: str) -> str:
    """Return ``ns::function<args>`` of a mangled name; empty where it is not understood."""
    if len(name) > MAX_MANGLED or find_spec("itanium_demangler") is None:
        return ""
    import itanium_demangler

    # Names of types (28CutlassGemm…), which libraries keep of their launchers, lack the prefix.
    symbol = re.sub(r"^_Z(TS)?|(\.\w+)+$", "", name)  # .cold, .part.0, .kd
    try:
        node = itanium_demangler.parse(f"_Z{symbol}")
    except (NotImplementedError, RecursionError, ValueError, IndexError, KeyError):
        return ""
    if node is None:
        return ""
    return re.sub(r"\b_GLOBAL__N_\w*", "(anonymous namespace)", str(node))


def identifiers(name: str) -> list[str]:
    """Return all length-prefixed identifiers of a mangled name, in order."""
    words, at = [], 0
    while match := re.compile(r"\d+").search(name, at):
        digits, at = match.group(), match.end()
        for start in range(max(0, len(digits) - 3), len(digits)):  # of "Li1289flash_fwd": 9
            length = int(digits[start:])
            word = name[at : at + length]
            if 1 < len(word) == length and re.fullmatch(r"[A-Za-z_]\w*", word):
                # a compiler's prefix before a named instance of CUTLASS is no part of it
                words.append(re.sub(r"^.*?(?=cutlass(?:[3-9]x_sm|_)\d+_)", "", word))
                at += len(word)
                break
    return words


def head_of(text: str) -> str:
    """Return the function without return type, parameters and the templates that carry it."""
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
        elif depth == 0 and re.match(r" [A-Za-z_{]", marked[at : at + 2]):
            start = at + 1
    head = marked[start:end]
    while carrier := _CARRIER.search(head):
        head = head[carrier.end() :]
    return head


def without_arguments(head: str) -> str:
    """Return ``a<b<c>>::d<e, f>`` as ``a::d``, also where an argument was cut short."""
    letters, depth = [], 0
    for letter in head:
        if depth == 0 and letter in ">,":
            break  # the end of the carrier's first argument
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0 and letter != ">":
            letters.append(letter)
    return "".join(letters).strip()
