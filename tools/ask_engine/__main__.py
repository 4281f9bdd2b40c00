"""Ask vLLM or SGLang itself what it does with a config, on a GPU that is not there.

    gacprof virtual h100 -- python tools/ask_engine vllm config.json --tp 8 [--ep] [--hollow]
    gacprof virtual h100 -- python tools/ask_engine sglang questions.json --answers FILE

Each question is asked in a fork of its own, as TP rank 0, with two layers and weights of zeros or a
checkpoint without data (``hollow.py``), which the engine's own loaders read; no file of the engine
is changed. ``docs/lint.md`` says what an answer holds and what it cannot see.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # last: the engine's own packages come first

LIMIT_S = 150
"""Seconds a question may take: kernels that are compiled at run time take the most."""


def ask(engine: str, question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question, from a fork; the end of what it printed where it died."""
    from common import answer

    serve = importlib.import_module(f"in_{engine}").serve

    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, "answer.json"), Path(folder, "log")
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_S)
            output = os.open(log, os.O_CREAT | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            answer(serve, question, Path(folder), result)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        said = json.loads(result.read_text()) if result.exists() else {"stage": "start"}
        if status:
            end = log.read_text(errors="replace")[-300:]
            said |= {"verdict": "died", "says": f"status {status}: {end}"}
    return {"engine": engine} | question | said


def main() -> None:
    """Answer a config, or each question of a list that the file of answers doesn't hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("questions", type=Path)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", action="store_true")
    parser.add_argument("--hollow", action="store_true", help="load a checkpoint without data")
    options = parser.parse_args()
    gpu = os.environ.get("GACPROF_VIRTUAL")
    if not gpu:
        parser.error("no virtual GPU: run it by 'gacprof virtual h100 -- python …'")
    content = json.loads(options.questions.read_text())
    if options.answers is None:
        ep = options.tp if options.ep else 1
        ranks = {"tp": options.tp, "ep": ep}
        question = {"config": content, "gpu": gpu, "hollow": options.hollow, **ranks}
        said = ask(options.engine, question)
        print(json.dumps(said, indent=1))
        return
    options.answers.touch()
    answered = {json.loads(line)["name"] for line in options.answers.read_text().splitlines()}
    for question in content:
        if question["gpu"] == gpu and question["name"] not in answered:
            said = ask(options.engine, question)
            with options.answers.open("a") as file:
                file.write(json.dumps(said) + "\n")
            told = f"{said['verdict']} at {said['stage']} {said.get('says', '')[:160]!r}"
            print(said["name"], told, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
