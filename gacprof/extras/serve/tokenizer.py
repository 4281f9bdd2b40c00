"""A tokenizer.json as a GGUF file keeps it: tokens, types, merges, special ids, pre-tokenizer.

llama.cpp does not run the regular expressions of a byte-level tokenizer.json. It knows some by
name, and a wrong name splits text wrongly without an error. So the name is found by the
pre-tokenizer's own structure, never guessed: what is not known is refused. SentencePiece's BPE
(Llama 2, Mistral) merges by scores, which are the ranks of its merges.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gacprof.core.errors import CheckpointError
from gacprof.core.files import read_json
from gacprof.extras.serve.carried import tokenizer_alone

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The split of GPT-4's tokenizer, which Llama 3 (numbers by three) and Qwen 2 (digit by digit) have
in their tokenizer.json."""

PRE_TOKENIZERS = {
    (("ByteLevel", True),): "gpt-2",
    (("Digits", True), ("ByteLevel", True)): "smollm",
    (("Split", _WORDS % "{1,3}"), ("ByteLevel", False)): "llama-bpe",
    (("Split", _WORDS % ""), ("ByteLevel", False)): "qwen2",
}
"""Structure → llama.cpp's name (src/llama-vocab.cpp). ``ByteLevel`` with True splits by GPT-2's
expression, ``Digits`` with True takes digits one by one."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""llama.cpp's types of tokens (llama.h, llama_token_type)."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE = "▁"


@dataclass(frozen=True)
class Vocabulary:
    """``tokens`` and ``types`` by id; ``model`` is llama.cpp's name of the kind: ``gpt2`` with the
    name ``pre`` of its pre-tokenizer, or ``llama`` with ``scores`` (SentencePiece's BPE)."""

    special: Any
    """``gguf.SpecialVocab``: merges, special ids, chat template."""
    model: Literal["gpt2", "llama"]
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    pre: str
    scores: tuple[float, ...] = ()
    add_space: bool = False

    def add_to(self, writer: Any) -> None:
        """Write it to a ``gguf.GGUFWriter``."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.model == "llama":
            writer.add_token_scores(self.scores)
            writer.add_add_space_prefix(self.add_space)
        self.special.add_to_gguf(writer, quiet=True)
        if "bos" not in self.special.add_special_token:
            writer.add_add_bos_token(False)


def read_tokenizer(folder: Path, size: int, pre: str | None) -> Vocabulary | None:
    """The tokenizer of a folder for a vocabulary of ``size``; None where there is no
    tokenizer.json. ``pre`` overrides the name of the pre-tokenizer. Links that lead outside the
    folder are not followed.

    Raises :class:`CheckpointError` for one that is no BPE, has more tokens than the model, or
    splits text in a way that is not known.
    """
    with tokenizer_alone(folder) as alone:
        if not (alone / "tokenizer.json").is_file():
            return None
        file = folder / "tokenizer.json"
        try:
            return _vocabulary(alone, size, pre, file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{file}: is not a tokenizer that can be exported") from None


def _vocabulary(folder: Path, size: int, pre: str | None, file: Path) -> Vocabulary:
    """The tokenizer; ``file`` names it in messages. A broken one raises what Python raises."""
    found = read_json(folder / "tokenizer.json")
    model = found["model"]
    by_id = {int(i): str(token) for token, i in dict(model["vocab"]).items()}
    added = {int(t["id"]): t for t in found.get("added_tokens") or ()}
    by_id |= {i: str(token["content"]) for i, token in added.items()}
    if model.get("type") != "BPE":
        raise CheckpointError(
            f"{file}: only BPE is written to GGUF, this is {str(model.get('type'))[:40]}; give "
            "--tokenizer of a folder without a tokenizer.json to write no vocabulary"
        )
    if max(by_id, default=0) >= size:
        raise CheckpointError(
            f"{file}: has a token {max(by_id)}, the model's vocabulary has {size}: is it another "
            "model's tokenizer?"
        )
    tokens = tuple(by_id.get(i, f"[PAD{i}]") for i in range(size))
    types = tuple(_type(by_id.get(i), added.get(i), model) for i in range(size))
    if not model.get("byte_fallback"):
        name = pre or _pre_tokenizer(found.get("pre_tokenizer"), file)
        return Vocabulary(_special(folder, size, merges=True), "gpt2", tokens, types, name)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges") or ()]
    ranks = {merge.replace(" ", "", 1): -i for i, merge in reversed(list(enumerate(merges)))}
    scores = tuple(float(ranks.get(token, -len(merges))) for token in tokens)
    special, adds = _special(folder, size, merges=False), _adds_space(found, file)
    return Vocabulary(special, "llama", tokens, types, pre or "default", scores, adds)


def _special(folder: Path, size: int, merges: bool) -> Any:
    """Merges and special ids, as gguf's own code reads them."""
    from gguf import SpecialVocab

    logging.getLogger("gguf").setLevel(logging.ERROR)  # its doubts about unused templates
    return SpecialVocab(folder, load_merges=merges, n_vocab=size)


def _type(token: str | None, added: Mapping[str, Any] | None, model: Mapping[str, Any]) -> int:
    if token is None:
        return UNUSED
    if token == model.get("unk_token"):
        return UNKNOWN
    if added is not None:
        return CONTROL if added.get("special") else USER_DEFINED
    return BYTE if model.get("byte_fallback") and _BYTE.fullmatch(token) else NORMAL


def _adds_space(found: Mapping[str, Any], file: Path) -> bool:
    """Whether text gets a leading space. Raises :class:`CheckpointError` for text that is changed
    in another way too."""
    steps = [step for key in ("normalizer", "pre_tokenizer") for step in _flat(found.get(key))]
    adds = False
    for step in steps:
        kind = step.get("type")
        if kind == "Metaspace":
            adds |= step.get("prepend_scheme", "always") != "never"
        elif kind == "Prepend" and step.get("prepend") == _SPACE:
            adds = True
        elif kind != "Replace" or step.get("pattern") != {"String": " "}:
            raise CheckpointError(
                f"{file}: its {kind} step is none of a SentencePiece BPE that is known here; give "
                "--tokenizer of a folder without a tokenizer.json to write no vocabulary"
            )
    return adds


def _pre_tokenizer(stored: Any, file: Path) -> str:
    steps = tuple(_steps(stored))
    name = PRE_TOKENIZERS.get(steps)
    if name is None:
        kinds = " then ".join(str(kind) for kind, _ in steps) or "none"
        raise CheckpointError(
            f"{file}: its pre-tokenizer ({kinds}) is none that is known here: give llama.cpp's "
            f"name for it by --tokenizer-pre (known: {', '.join(PRE_TOKENIZERS.values())})"
        )
    return name


def _steps(stored: Any) -> Iterator[tuple[str, Any]]:
    """Each step with the one setting that changes how it splits."""
    for step in _flat(stored):
        kind = str(step.get("type"))
        if kind == "ByteLevel":
            yield kind, step.get("use_regex", True)
        elif kind == "Digits":
            yield kind, step.get("individual_digits", False)
        elif kind == "Split":
            isolated = step.get("behavior") == "Isolated" and not step.get("invert")
            yield kind, (step.get("pattern") or {}).get("Regex") if isolated else None
        else:
            yield kind, None


def _flat(stored: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences opened. Raises ``TypeError``."""
    if stored is None:
        return
    if not isinstance(stored, Mapping):
        raise TypeError("a step is no JSON object")
    if stored.get("type") != "Sequence":
        yield stored
    for step in (*(stored.get("pretokenizers") or ()), *(stored.get("normalizers") or ())):
        yield from _flat(step)
