"""Ask vLLM itself what it does with a config, on a GPU that is not there.

    gacprof virtual h100 -- .venv-vllm/bin/python tools/ask_vllm questions.json answers.jsonl
    gacprof virtual h100 -- .venv-vllm/bin/python tools/ask_vllm config.json --tp 8 [--ep]

Each question is asked in a fork of its own, as TP rank 0, with two layers and weights of zeros; no
file of the engine is changed. ``docs/lint.md`` says what an answer holds and what it cannot see.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # last: the engine's own packages come first

LIMIT_S = 240
"""Seconds a question may take: kernels that are compiled at run time take the most."""


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question, from a fork; what it printed is kept where it died."""
    from engine import answer

    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder, "answer.json"), Path(folder, "log")
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_S)
            faulthandler.enable()
            output = os.open(log, os.O_CREAT | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            try:
                answer(question, Path(folder), result)
            finally:
                sys.stdout.flush()
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        answered = json.loads(result.read_text()) if result.exists() else {"stage": "start"}
        printed = log.read_text(errors="replace")
    if status:
        answered["verdict"], answered["says"] = "died", f"status {status}: {printed[-9000:]}"
    warnings = re.findall(r"WARNING [-\d: ]+\[[^]]*\] ?(.{1,300})", printed)
    return question | answered | {"warnings": list(dict.fromkeys(warnings))[:20]}


def questions_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The questions of a list, or the one of a config."""
    content = json.loads(options.questions.read_text())
    if isinstance(content, list):
        return [question for question in content if question["gpu"] == options.gpu]
    return [{"config": content, "tp": options.tp, "ep": options.tp if options.ep else 1}]


def main() -> None:
    """Answer, a line of JSON each; questions that the file of answers holds are left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", type=Path)
    parser.add_argument("answers", type=Path, nargs="?")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", action="store_true")
    options = parser.parse_args()
    options.gpu = os.environ.get("GACPROF_VIRTUAL")
    if not options.gpu:
        parser.error("no virtual GPU: run it by 'gacprof virtual h100 -- python …'")
    done = set()
    if options.answers and options.answers.exists():
        lines = options.answers.read_text().splitlines()
        done = {json.loads(line).get("name") for line in lines}
    for question in questions_of(options):
        if question.get("name", "") in done:
            continue
        begin = time.monotonic()
        result = ask(question) | {"gpu": options.gpu}
        result["seconds"] = round(time.monotonic() - begin, 1)
        if options.answers is None:
            print(json.dumps(result, indent=1))
            continue
        with options.answers.open("a") as file:
            file.write(json.dumps(result) + "\n")
        told = f"{result['verdict']} at {result['stage']} {result.get('says', '')[:160]!r}"
        print(question.get("name"), told, result["seconds"], "s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
