"""Ask gacprof again what the goldens hold, show what differs, and freeze it with ``--write``.

    PYTHONPATH=tests/support python tools/freeze_goldens.py inventories [--only deepseek] [--write]

Only answers that the tests compare are asked, by the functions that they call
(``tests/support/golden_answers.py``). Read the differences: a golden is re-frozen where the new
answer is known to be right. ``tests/goldens/README.md`` says which goldens are not made here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from golden_answers import (
    GOLDENS,
    inventory_answer,
    is_made_here,
    is_verdict_frozen,
    logits_answer,
    made,
    name_answer,
    read_golden,
    realigned_answer,
    type_answer,
    verdicts_answer,
)
from tool_checkpoints import same_fields

from gacprof.core.errors import GacprofError
from gacprof.kernels.rules import Rules
from gacprof.realigning.realign import realign

Entry = dict[str, Any]
Answers = Iterator[tuple[str, Entry, Entry, Entry]]
"""A label, the golden's entry, what of it is compared, and what gacprof answers now."""

FOLDER = ("tensors", "fingerprint", "config", "files", "error")
"""What is compared of a realigned folder, or that it is refused."""

WORDS = ("pad8", "pad16", "uniform", "fuse")
"""Ways to realign whose answers are compared whole. Digests of what was multiplied out are this
machine's: the tests compare their shapes."""

ROUNDING = 1e-4
"""Floats that differ by less are equal: another order of summing."""


def inventories(golden: Entry, only: str) -> Answers:
    """Inventories of the checkpoints that can be made here."""
    for key, entry in golden.items():
        if is_made_here(key) and only in key:
            with tempfile.TemporaryDirectory() as folder:
                answer = inventory_answer(key, Path(folder))
            yield key, entry, same_fields(entry, answer), answer


def inventories_types(golden: Entry, only: str) -> Answers:
    """Inventories of transformers' model types, for the release that is installed."""
    version = {"transformers": transformers.__version__}
    yield "", golden, {"transformers": golden["transformers"]}, version
    for kind, entry in golden.items():
        if kind != "transformers" and only in kind:
            with tempfile.TemporaryDirectory() as folder:
                answer = type_answer(kind, Path(folder))
            yield kind, entry, same_fields(entry, answer), answer


def logits(golden: Entry, only: str) -> Answers:
    """Logits of the checkpoints that can be made here."""
    for name, entry in golden.items():
        if is_made_here(name) and only in name:
            with tempfile.TemporaryDirectory() as folder:
                yield name, entry, entry, logits_answer(name, Path(folder))


def realigned(golden: Entry, only: str) -> Answers:
    """Folders that the words of ``realign`` write, or that they are refused."""
    for name, entry in golden.items():
        if name.startswith("shared/") or only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = made(name, Path(folder, "source"))
            for word in WORDS:
                before = {key: entry[word][key] for key in FOLDER if key in entry[word]}
                try:
                    answer = realigned_answer(realign(source, word, Path(folder, word)))
                except GacprofError as error:  # that it is refused counts, not the words
                    text = str(error).replace(folder, "TMP")
                    answer = {"error": before.get("error", text)}
                yield f"{name} {word}", entry[word], before, answer


def rules(golden: Entry, only: str) -> Answers:
    """Verdicts of the rules on products."""
    for key, entry in golden["products"].items():
        if is_verdict_frozen(key) and only in key:
            gpu = Rules(key.partition("|")[0])
            answer = {"verdict": verdicts_answer(gpu, key, len(entry["verdict"]))}
            yield key, entry, {"verdict": entry["verdict"]}, answer


def kernel_names(golden: Entry, only: str) -> Answers:
    """What kernels' names say."""
    for file, names in golden.items():
        if not file.startswith("templates") and only in file:
            for name, fields in names.items():
                yield name[:60], fields, dict(fields), name_answer(name)


FREEZERS: Mapping[str, Callable[[Entry, str], Answers]] = {
    function.__name__: function
    for function in (inventories, inventories_types, logits, realigned, rules, kernel_names)
}


def differences(place: str, before: Any, after: Any) -> Iterator[str]:
    """Say in a line what differs at each place."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(f"{place}.{key}", before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(f"{place}[{index}]", old, new)
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=ROUNDING, abs_tol=ROUNDING):
            yield f"{place}: {before} → {after}"
    elif before != after:
        yield f"{place}: {str(before)[:200]} → {str(after)[:200]}"


def main() -> None:
    """Show what differs; exit code 1 where something does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("golden", choices=FREEZERS)
    parser.add_argument("--only", default="", help="a part of the entries' names")
    parser.add_argument("--write", action="store_true", help="freeze what differs")
    options = parser.parse_args()
    golden = read_golden(options.golden)
    count = 0
    for label, entry, before, answer in FREEZERS[options.golden](golden, options.only):
        for key in sorted({*before, *answer}):
            lines = list(differences(f"{label}: {key}", before.get(key), answer.get(key)))
            if lines:
                print(*lines, sep="\n")
                count += len(lines)
                entry.pop(key, None)
                entry |= {key: answer[key]} if key in answer else {}
    print(f"{options.golden}: {count} differences")
    if options.write and count:
        data = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
        path = GOLDENS / f"{options.golden}.json.gz"
        path.write_bytes(gzip.compress(data.encode(), mtime=0))
    sys.exit(count > 0 and not options.write)


if __name__ == "__main__":
    main()
