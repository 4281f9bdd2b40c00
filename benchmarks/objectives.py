"""Which measure of harm costs the least quality: the same share of parameters, chosen in many ways.

    python benchmarks/objectives.py [--out runs/objectives] [--only python,brown] [--rows loss]
        [--map MAP | --gpu GPU] [--limit-tokens 8192] [--device cpu]

SmolLM2-135M is compressed by every row of ROWS, 15 % by four windows of Python's own language
reference and 30 % by 32 windows of the Brown corpus, and its perplexity measured on other parts of
the same texts. Without a map or rules the sizes that are chosen are multiples of 8. The last row
has no dense weights at hand: the first row's pairs are cut anew, to no more parameters. Model and
texts are fetched (tools/fetch_smollm2.py, fetch_brown.py) into --out unless they are there.
Perplexities of different lengths do not compare: that of the uncompressed model is 15.5 over
4,096 tokens of Python's reference, 14.6 over 8,192 and 15.5 over 19,968.

Each model and each table is a file: what is there is not made again. The tables, with the machine,
are in --out/NAME.md and NAME.json. On two quiet cores all of it takes about an hour; where other
programs run, OMP_NUM_THREADS=1 is faster.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gacprof
from gacprof.core.errors import GacprofError
from gacprof.core.files import read_json, write_json, write_text
from gacprof.demonstrating.models import write_texts
from gacprof.devices.environment import cpu_environment
from gacprof.evaluation.evaluating import Quality

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import fetch_brown
import fetch_smollm2

ROWS: dict[str, dict[str, Any]] = {
    "svd-llm, its own ranks": {"method": "svd-llm"},
    "svd-llm, rounded down to 8": {"method": "svd-llm", "round_to": 8},
    "svd-llm, energy": {"method": "svd-llm", "objective": "energy"},
    "svd-llm, gscalar": {"method": "svd-llm", "objective": "gscalar"},
    "svd-llm, loss": {"method": "svd-llm", "objective": "loss"},
    "kfac-svd, its own ranks": {"method": "kfac-svd"},
    "kfac-svd, loss": {"method": "kfac-svd", "objective": "loss"},
    "own ranks cut anew": {
        "of": "svd-llm, its own ranks", "ratio": 0, "method": "kfac-svd", "objective": "loss",
    },
}  # fmt: skip
MULTIPLE = 8


@dataclass(frozen=True)
class Setting:
    """One table: the text, how much is removed, and how much of the text calibrates."""

    name: str
    ratio: float
    windows: int


SETTINGS = (Setting("python", 0.15, 4), Setting("brown", 0.30, 32))


def texts_of(setting: Setting, out: Path) -> tuple[Path, Path]:
    """Calibration and evaluation text."""
    folder = out / "texts" / setting.name
    if setting.name == "brown":
        return fetch_brown.fetch(folder)
    paths = folder / "calibration.txt", folder / "evaluation.txt"
    if not all(path.is_file() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        write_texts(folder)
    return paths


def model_of(out: Path) -> Path:
    """The dense model's folder."""
    folder = out / "smollm2"
    if not (folder / "model").exists():
        file = fetch_smollm2.fetch(folder)
        gacprof.import_gguf(file, folder / "model", dtype="bfloat16")
    return folder / "model"


def compressed(setting: Setting, row: str, out: Path, source: dict[str, Any]) -> dict[str, Any]:
    """Make the row's model unless it is there; what its record says."""
    folder = out / setting.name / row.replace(", ", "-").replace(" ", "-")
    if not folder.exists():
        asked = {"ratio": setting.ratio} | ROWS[row]
        of = asked.pop("of", None)
        model = compressed(setting, of, out, source)["folder"] if of else model_of(out)
        if "objective" in asked:
            asked |= source or {"round_to": MULTIPLE}
        gacprof.compress(
            model, folder, calib=texts_of(setting, out)[0], windows=setting.windows,
            work=out / "work", **asked,
            tell=lambda line: print(f"{setting.name}, {row}: {line}", flush=True),
        )  # fmt: skip
    return {"row": row, "folder": folder, **read_json(folder / "gacprof.json")}


def table(setting: Setting, made: list[dict[str, Any]], quality: Quality) -> str:
    """Markdown; the change of perplexity is against the first compressed model, paired."""
    machine = cpu_environment().name
    lines = [
        f"{setting.ratio:.0%} removed, {setting.windows} windows of 512 tokens of {setting.name} "
        f"calibrate, perplexity over {quality.tokens - 1:,} other tokens of it; {machine}, gacprof "
        f"{gacprof.__version__}",
        "",
        "| | parameters | left dense | loss added, estimated | perplexity | against the first |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    first, *others, dense = quality.models
    for one, record in zip((first, *others, dense), (*made, None), strict=True):
        change, left, added = "", "", ""
        if one.perplexity_change is not None:
            by = one.perplexity_change
            change = f"{by.value:+.1%} ({by.low:+.1%} to {by.high:+.1%})"
        if record is not None:
            left = str(record["left_dense"])
            added = "" if record["loss_added"] is None else f"{record['loss_added']:.3f}"
        name = "uncompressed" if record is None else record["row"]
        value = f"{one.perplexity.value or float('nan'):.2f}"
        lines.append(f"| {name} | {one.parameters:,} | {left} | {added} | {value} | {change} |")
    return "\n".join([*lines, ""])


def run(
    setting: Setting, rows: list[str], out: Path, source: dict[str, Any], limit: int, device: str
) -> str:
    for row in sorted(rows, key=lambda row: "loss" not in row):  # its pass back serves for others
        compressed(setting, row, out, source)
    made = [compressed(setting, row, out, source) for row in rows]
    quality = gacprof.evaluate(
        [*(one["folder"] for one in made), model_of(out)], text=texts_of(setting, out)[1],
        tokenizer=model_of(out), window=512, stride=512, limit_tokens=limit, device=device,
    )  # fmt: skip
    text = table(setting, made, quality)
    write_json(out / f"{setting.name}.json", quality.as_dict())
    write_text(out / f"{setting.name}.md", text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/objectives"))
    parser.add_argument("--only", help="python or brown")
    parser.add_argument("--rows", default="", help="only those with one of these in their names")
    parser.add_argument("--map")
    parser.add_argument("--gpu")
    parser.add_argument("--limit-tokens", type=int, default=8192)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    source = {"cliff_map": asked.map, "gpu": asked.gpu}
    rows = [row for row in ROWS if any(part in row for part in asked.rows.split(","))]
    source = {name: value for name, value in source.items() if value is not None}
    try:
        for setting in SETTINGS:
            if asked.only is None or setting.name in asked.only.split(","):
                print(run(setting, rows, asked.out, source, asked.limit_tokens, asked.device))
    except GacprofError as error:
        sys.exit(f"objectives: {error}")


if __name__ == "__main__":
    main()
