"""Ask an installed PyTorch which kernels it launches on a virtual GPU, and keep the answers."""

import json
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import gacprof
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_text
from gacprof.kernels.demangle import head_of, readable, without_arguments
from gacprof.kernels.dispatch import (
    SCHEMA,
    DispatchTable,
    Section,
    parse_table,
    shipped_tables,
    table_path,
)
from gacprof.virtual.build import tool_output
from gacprof.virtual.profiles import profile
from gacprof.virtual.run import virtual

PERIODS = (1, 2, 4, 8, 16, 32, 64, 128)  # lengths of the patterns that a run may repeat
SHORTEST_REPEAT = 2  # times that a pattern longer than one must be seen
# the package's folder goes last, so that the asked PyTorch's own packages come first
CHILD = (
    "import os, sys; sys.path.append(sys.argv[1]); os.environ['TORCH_CPP_LOG_LEVEL'] = 'ERROR'; "
    "from gacprof.virtual.questions import main; main()"
)

Key = tuple[object, ...]  # of a section: what a question asks


@dataclass(frozen=True)
class DispatchChange:
    """Sizes that one kind of question has another answer for.

    ``questions`` are the values of each part of the section's keys, in all combinations that were
    asked; a part that stands for any value is left out. An answer of None was not asked for.
    """

    section: str
    questions: Mapping[str, Sequence[Any]]
    sizes: Sequence[int]
    before: Any
    after: Any


@dataclass(frozen=True)
class DispatchChanges:
    """What a later release of PyTorch dispatches otherwise on a GPU, of ``questions`` in all."""

    schema: ClassVar[str] = "gacprof.DispatchChanges/1"
    gpu: str
    before: str
    after: str
    provenance: str
    questions: int
    changes: Sequence[DispatchChange]


@cache
def short_name(kernel: str) -> str:
    """Return a kernel's name as tables show it: without namespaces, parameters, long arguments."""
    head = head_of(demangled(kernel))
    if "CollectiveMma<" in head:  # CUTLASS 3: main loop, its schedule, tile and cluster
        words = (re.search(r"Mainloop\w+", head), re.search(r"\bKernel\w+", head))
        shapes = re.findall(r"tuple<cute::C<(\d+)>, cute::C<(\d+)>, cute::C<(\d+)>>", head)
        cluster, tile = ("×".join(shape) for shape in shapes[:2])
        loop = " ".join(word[0] for word in words if word)
        return f"cutlass {loop} tile {tile} cluster {cluster}"
    name = without_arguments(head).split("::")[-1].replace("{anonymous}", "")
    inside = head.partition("<")[2].rpartition(">")[0]
    arguments = [re.sub(r"\b\w+::(?=\w)", "", text) for text in split_arguments(inside)]
    plain = [text if re.fullmatch(r"-?[\w ]+(<[\w, ]*>)?", text) else "…" for text in arguments]
    return f"{name}<{', '.join(plain)}>" if plain else name


def demangled(symbol: str) -> str:
    """Return a symbol as C++ writes it, by c++filt or, where that gives up, by our own."""
    text = tool_output(["c++filt", symbol]).strip()
    return readable(symbol) if text == symbol else text


def split_arguments(text: str) -> list[str]:
    """Return the template arguments of a text, those within brackets left together."""
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter in "<({") - (letter in ">)}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def to_runs(first: int, answers: Sequence[int]) -> list[list]:
    """Return runs of answers for the sizes from ``first`` on, as a table's section has them."""
    runs: list[list] = []
    at = 0
    while at < len(answers):
        ends = {}
        for period in PERIODS:
            end = min(at + period, len(answers))
            while end < len(answers) and answers[end] == answers[end - period]:
                end += 1
            if period == 1 or end - at >= SHORTEST_REPEAT * period:
                ends[period] = end
        period = max(ends, key=ends.__getitem__)  # the furthest; of equals the shortest
        pattern = [0] * period
        for index, answer in enumerate(answers[at : ends[period]][:period], first + at):
            pattern[index % period] = answer
        runs.append([first + at, first + ends[period] - 1, pattern])
        at = ends[period]
    return runs


def compressed(section: dict[str, Any]) -> dict[str, Any]:
    """Return a section with one copy of each answer and of each list of runs."""
    numbers: dict[str, int] = {}
    renumbered = []
    for answer in section["answers"]:
        if isinstance(answer, str) and not answer.startswith("refused"):
            answer = " + ".join(dict.fromkeys(map(short_name, answer.split(" + "))))
        text = json.dumps(answer, ensure_ascii=False)
        renumbered.append(numbers.setdefault(text, len(numbers)))
    all_runs: dict[str, int] = {}
    rows = []
    for *key, answers in section["rows"]:
        runs = to_runs(section["range"][0], [renumbered[number] for number in answers])
        rows.append([*key, all_runs.setdefault(json.dumps(runs), len(all_runs))])
    head = {key: section[key] for key in ("by", "range", "asked") if section.get(key)}
    return head | {
        "answers": [json.loads(text) for text in numbers],
        "runs": [json.loads(text) for text in all_runs],
        "rows": rows,
    }


def asked_table(gpu: str, python: Path) -> str:
    """Return what the PyTorch of ``python`` answers on a virtual GPU, as a table in JSON."""
    device = profile(gpu)
    root = Path(gacprof.__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.json"
        status = virtual(gpu, [str(python), "-c", CHILD, str(root), str(answers)])
        if status:
            raise GacprofError(f"PyTorch of {python} stopped on a virtual {gpu} (status {status})")
        sections = json.loads(answers.read_text(encoding="utf-8"))
    versions = sections.pop("versions")
    release = versions["torch"].split("+")[0]
    name = device.gpu.upper()
    table = {
        "schema": SCHEMA,
        "gpu": device.gpu,
        "device": device.name,
        "release": release,
        "provenance": f"by PyTorch {release}'s dispatcher on a virtual {name}; no kernel was run",
        "versions": versions,
        "profile": device.values,
        "sections": {name: compressed(section) for name, section in sections.items()},
    }
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    return text.replace('],["', '],\n["') + "\n"  # a row a line: changes are seen in a diff


def changes_between(before: DispatchTable, after: DispatchTable) -> DispatchChanges:
    """Return the sizes and questions that two tables of one GPU answer differently."""
    changes: list[DispatchChange] = []
    questions = 0
    for name, section in after.sections.items():
        other = before.sections[name]
        keys = {**other.keys, **section.keys}
        questions += len(keys)
        keys_of: dict[tuple[str, str, tuple[int, ...]], set[Key]] = {}
        for key in keys:
            for answers, changed_sizes in differences(other, section, key).items():
                keys_of.setdefault((*answers, tuple(changed_sizes)), set()).add(key)
        for (old, new, sizes), changed in keys_of.items():
            for box in products_of(changed, keys):
                parts = zip(section.by, box, strict=True)
                limited = {part: values for part, values in parts if values}
                answers = json.loads(old), json.loads(new)
                changes.append(DispatchChange(name, limited, sizes, *answers))
    by = f"by PyTorch's dispatcher on a virtual {after.device}; no kernel was run"
    releases = before.release, after.release
    return DispatchChanges(after.gpu, *releases, by, questions, tuple(changes))


def differences(
    before: Section, after: Section, key: tuple[object, ...]
) -> dict[tuple[str, str], list[int]]:
    """Return the sizes of which two tables answer a question differently, by the two answers."""
    sizes_of: dict[tuple[str, str], list[int]] = {}
    for size in range(1, max(before.range[1], after.range[1]) + 1):
        old, new = before.lookup(size, *key), after.lookup(size, *key)
        if old != new:
            sizes_of.setdefault((json.dumps(old), json.dumps(new)), []).append(size)
    return sizes_of


def products_of(changed: Collection[Key], keys: Collection[Key]) -> list[list[list[object]]]:
    """Return the changed keys as few products of values of each part, with no value for a part that
    has all of them. A product may hold keys that nobody asked."""
    boxes = []
    left = sorted(changed, key=str)
    every = [sorted(set(part), key=str) for part in zip(*keys, strict=True)]
    while left:
        box = [[part] for part in left[0]]
        size = 1  # the number of its keys that were asked
        for place, values in enumerate(every):
            for value in values:
                wider = [*box[:place], sorted({*box[place], value}, key=str), *box[place + 1 :]]
                inside = [key for key in product(*wider) if key in keys]
                if len(inside) > size and all(key in changed for key in inside):
                    box, size = wider, len(inside)
        left = [key for key in left if key not in set(product(*box))]
        boxes.append([[] if part == full else part for part, full in zip(box, every, strict=True)])
    return boxes


def read_table(gpu: str, release: str | None = None) -> str:
    """Return the text of a shipped table. Raises :class:`GacprofError` where none ships."""
    path = table_path(gpu, release)
    if path is not None:
        return path.read_text(encoding="utf-8")
    gpus, releases = zip(*shipped_tables(), strict=True)
    lack = f"{gpu} with torch {release}" if release else gpu
    raise GacprofError(
        f"no table of {lack} ships: there are {', '.join(dict.fromkeys(gpus))}, "
        f"each with torch {', '.join(dict.fromkeys(releases))}"
    )


def dispatch(
    gpu: str,
    *,
    release: str | Sequence[str] | None = None,
    torch_python: Path | None = None,
    out: Path | None = None,
) -> DispatchTable | DispatchChanges:
    """Show which kernels PyTorch takes on a GPU, or what changed between two releases.

    A table that comes with gacprof answers at once. With --torch-python an installed PyTorch is
    asked instead, on a virtual GPU: this takes half a minute, and no kernel runs.

    Parameters
    ----------
    gpu
        a100, h100, b200, rtx4090 …
    release
        The PyTorch release whose table is read, such as 2.13. By default the newest. Of two, such
        as 2.13 2.15, what the second does otherwise than the first.
    torch_python
        The python of an installed PyTorch (CUDA build), which is asked instead: ``--torch-python
        python``.
    out
        A file to write the whole table to, as JSON.

    Returns
    -------
    The table of answers, the same bytes each time; of two releases their differences.

    Raises
    ------
    GacprofError
        No such table ships, or that PyTorch cannot be asked (see ``virtual``).

    Examples
    --------
    >>> gacprof.dispatch("h100").sdpa(107, causal=True).backend  # PyTorch's choice for attention
    'flash'
    >>> len(gacprof.dispatch("h100", release=["2.13", "2.15"]).changes) > 0
    True
    """
    releases = [release] if isinstance(release, str) else [*(release or ())]
    if len(releases) > 1:
        if len(releases) > 2 or torch_python is not None or out is not None:
            raise GacprofError("two releases are compared: name two, and neither a python nor out")
        before, after = (parse_table(read_table(gpu, name)) for name in releases)
        return changes_between(before, after)
    text = asked_table(gpu, torch_python) if torch_python else read_table(gpu, *releases)
    if out is not None:
        write_text(out, text)
    return parse_table(text)
