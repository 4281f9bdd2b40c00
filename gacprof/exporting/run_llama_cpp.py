"""Load a GGUF file in llama.cpp and continue a prompt. Run as a script, in isolation.

A JSON request comes on stdin: ``file``, ``prompt`` (token ids), ``tokens`` (how many to make),
``forced`` (token ids after the prompt, each step of which is asked for its probabilities) and
``texts`` (to be split into token ids). The answer is the last line of stdout.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib.metadata import version
from typing import Any

BEST = 10
"""So many log-probabilities are reported of every token."""

ERRORS_ONLY = 1
"""Of llama.cpp's log (common/log.h)."""

ANSWER_WITHIN_S = 1800


def main() -> None:
    import xllamacpp

    request = json.load(sys.stdin)
    params = xllamacpp.CommonParams()
    params.model.path = request["file"]
    params.n_ctx = 1024
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = ERRORS_ONLY
    params.port = 0  # any that is free
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)  # it serves while it is referenced
    address = server.listening_address
    made = post(address, "completion", completion(request["prompt"], request["tokens"]))
    forced = request["forced"]
    prompts = [request["prompt"] + forced[:i] for i in range(len(forced))]
    texts = [{"content": text, "add_special": True} for text in request["texts"]]
    answer = {
        "version": version("xllamacpp"),
        "tokens": made["tokens"],
        "logprobs": [best_of(post(address, "completion", completion(p, 1))) for p in prompts],
        "ids": [post(address, "tokenize", text)["tokens"] for text in texts],
    }
    print(json.dumps(answer), flush=True)


def completion(prompt: list[int], tokens: int) -> dict[str, Any]:
    """A request for greedy tokens."""
    return {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "n_probs": BEST,
        "return_tokens": True,
    }


def best_of(said: Any) -> dict[int, float]:
    """The best ids of one token with their log-probabilities; empty for a token that ends within
    a character, of which the server tells none."""
    listed = said.get("completion_probabilities")
    return {best["id"]: best["logprob"] for best in listed[0]["top_logprobs"]} if listed else {}


def post(address: str, verb: str, body: Any) -> Any:
    """What the server answers, over its own port on this machine."""
    asked = urllib.request.Request(f"{address}/{verb}", json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=ANSWER_WITHIN_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
