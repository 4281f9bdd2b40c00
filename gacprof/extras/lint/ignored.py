"""Lists of modules that stay as they are, by any of the spellings that tools write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import cache

from gacprof.core.errors import ConfigError

SPELLINGS = (
    ("model.", "language_model.model."),
    ("model.", "model.language_model."),
    ("model.", "backbone."),
    (".mlp.", ".block_sparse_moe."),
    (".mlp.", ".feed_forward."),
    (".mlp.", ".mixer."),
    (".self_attn.", ".mixer."),
    (".self_attn.", ".attn."),
)
"""Parts of our names of modules, and what other models call them."""
MAX_PATTERN = 500
MAX_REPEATS = 6
"""A pattern of a stranger's config with more of them, or a repeat within one, might take for ever:
it names nothing."""


class NamedModules:
    """The modules that a config's entries name: plain names or parts of them, shell patterns, and
    regular expressions behind ``re:``. ``layers`` is how many the model has."""

    def __init__(self, entries: Sequence[str], layers: int) -> None:
        self.layers = layers
        self._layers_of: dict[str, frozenset[int]] = {}
        self._numbered: dict[str, set[int]] = {}
        self._patterns: list[re.Pattern[str]] = []
        for entry in entries:
            numbered = re.fullmatch(r"(?:[\w.]*\.)?layers\.(\d{1,4})(?:\.([\w.]+))?", entry)
            if numbered:
                self._numbered.setdefault(numbered[2] or "", set()).add(int(numbered[1]))
            else:
                self._patterns.append(_pattern(entry))

    def layers_of(self, module: str) -> frozenset[int]:
        """The layers in which this module (``model.layers.{}.mlp.up_proj``) is named."""
        if module not in self._layers_of:
            self._layers_of[module] = frozenset(self._search(module))
        return self._layers_of[module]

    def _search(self, module: str) -> set[int]:
        layers: set[int] = set()
        for name in _spellings(module):
            parts = name.rpartition("layers.{}.")[2].split(".")
            for length in range(len(parts) + 1):
                layers |= self._numbered.get(".".join(parts[:length]), set())
            for layer in range(self.layers):
                numbered = name.replace("{}", str(layer))
                layers |= {layer for pattern in self._patterns if pattern.search(numbered)}
        return layers

    def has_all(self, modules: Sequence[str]) -> bool:
        """Whether these modules are named in every layer."""
        return bool(modules) and all(len(self.layers_of(name)) >= self.layers for name in modules)

    def differ(self, modules: Sequence[str]) -> bool:
        """Whether some of these modules are named in a layer in which others are not."""
        return len({self.layers_of(module) for module in modules}) > 1


@cache
def _spellings(module: str) -> tuple[str, ...]:
    names = [module]
    for ours, theirs in SPELLINGS:
        names += [name.replace(ours, theirs, 1) for name in names if ours in name]
    return tuple(dict.fromkeys(names))


def _pattern(entry: str) -> re.Pattern[str]:
    """An entry as a regular expression. Raises :class:`ConfigError` for one that is broken."""
    text = rf"(^|\.){re.escape(entry)}(\.|$)"
    if entry.startswith("re:"):
        text = f"^(?:{entry[3:]})"
        repeats = len(re.findall(r"[*+}]", text))
        if repeats > MAX_REPEATS or len(text) > MAX_PATTERN or re.search(r"[)\]][*+{]", text):
            return re.compile(r"(?!)")
    elif re.search(r"[*?\[]", entry):
        text = f"^{translate(entry)}"
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"the config's pattern {entry[:60]!r} is broken: {error}") from None
