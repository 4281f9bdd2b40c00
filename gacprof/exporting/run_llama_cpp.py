"""Load a GGUF file in llama.cpp and continue a prompt. Run as a script, in isolation.

A JSON request comes on stdin: ``file``, ``prompt`` (token ids), ``tokens``, and ``texts`` to be
split into token ids. The answer is the last line of stdout.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib.metadata import version
from typing import Any

BEST = 10
"""So many log-probabilities are reported of every token."""


def main() -> None:
    import xllamacpp

    request = json.load(sys.stdin)
    params = xllamacpp.CommonParams()
    params.model.path = request["file"]
    params.n_ctx = 1024
    params.n_parallel = 1
    params.warmup = False
    params.port = 0  # any that is free
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    answer: Any = server.handle_completions(
        {
            "prompt": request["prompt"],
            "n_predict": request["tokens"],
            "max_tokens": request["tokens"],
            "temperature": 0,
            "n_probs": BEST,
            "logprobs": BEST,
            "cache_prompt": False,
        }
    )
    if "choices" not in answer:
        sys.exit(f"llama.cpp says: {answer}")
    listed = answer["choices"][0]["logprobs"]["content"]
    print(
        json.dumps(
            {
                "version": version("xllamacpp"),
                "tokens": [entry["id"] for entry in listed],
                "logprobs": [
                    {str(best["id"]): best["logprob"] for best in entry["top_logprobs"]}
                    for entry in listed
                ],
                "text": answer["choices"][0]["text"],
                "ids": [split(server, text) for text in request["texts"]],
            }
        )
    )


def split(server: Any, text: str) -> list[int]:
    """The token ids of a text, special ones added, by the server's own address."""
    body = json.dumps({"content": text, "add_special": True}).encode()
    asked = urllib.request.Request(f"{server.listening_address}/tokenize", body)
    with urllib.request.urlopen(asked) as answer:
        found: list[int] = json.load(answer)["tokens"]
    return found


if __name__ == "__main__":
    main()
