"""llama.cpp as an engine: its own server, through the wheel ``xllamacpp``.

Times are those that llama-server gives with every answer: ``prompt_ms`` from the start of the
prompt to the first token, ``predicted_ms`` for the tokens after it (the first comes with the
prompt, so n tokens are n − 1 steps). The prompt cache is off, and an answer that took tokens from
one is refused. The server listens on the loopback address only. Runs by itself (:mod:`.worker`):
nothing of gacprof here.
"""

from __future__ import annotations

import importlib.metadata
import json
import urllib.request
from typing import Any

PATIENCE_S = 1800.0
BEST = 10
"""So many log-probabilities are reported of every token."""


class LlamaCppModel:
    _server: Any = None
    _address = ""

    def open(
        self, model: str, threads: int, positions: int, dtype: str | None, trust: bool
    ) -> dict[str, Any]:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx = positions
        params.n_parallel = 1
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.n_gpu_layers = 0
        params.cache_prompt = False
        params.cache_ram_mib = 0
        params.ctx_shift = False
        if dtype == "float32":  # attention and its cache as in float32 models
            params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.hostnames = ["127.0.0.1"]
        params.port = 0  # any that is free
        self._server = xllamacpp.Server(params)
        self._address = self._server.listening_address
        found = self._ask("/v1/models")["data"][0]["meta"]
        return {
            "version": importlib.metadata.version("xllamacpp"),
            "device": "cpu",
            "dtype": "as in the file",
            "vocabulary": int(found["n_vocab"]),
            "parameters": int(found["n_params"]),
            "positions": int(found["n_ctx_train"]),
        }

    def prefill(self, ids: list[int]) -> float:
        return float(self._complete(ids, 1)["timings"]["prompt_ms"]) * 1e3

    def decode(self, ids: list[int], steps: int) -> float:
        timings = self._complete(ids, steps + 1)["timings"]
        return float(timings["predicted_ms"]) * 1e3 / (timings["predicted_n"] - 1)

    def greedy(self, ids: list[int], count: int) -> list[int]:
        return list(self._complete(ids, count)["tokens"])

    def probe(
        self, ids: list[int], count: int, forced: list[int], texts: list[str]
    ) -> dict[str, Any]:
        """The likeliest tokens, at most ``count``; for each of the ``forced`` tokens that follow
        the prompt the log-probabilities of the best ids in its place; and the ids of ``texts``."""

        def asked(prompt: list[int], count: int) -> Any:
            return self._ask("/completion", {
                "prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": BEST,
                "return_tokens": True,
            })  # fmt: skip

        steps = [asked(ids + forced[:i], 1) for i in range(len(forced))]
        split = [{"content": text, "add_special": True} for text in texts]
        return {
            "tokens": asked(ids, count)["tokens"],
            "logprobs": [_best_of(step) for step in steps],
            "ids": [self._ask("/tokenize", text)["tokens"] for text in split],
        }

    def _complete(self, ids: list[int], count: int) -> dict[str, Any]:
        asked = {
            "prompt": ids, "n_predict": count, "temperature": 0.0, "top_k": 1, "seed": 0,
            "samplers": ["top_k"], "cache_prompt": False, "ignore_eos": True,
            "return_tokens": True,
        }  # fmt: skip
        found = self._ask("/completion", asked)
        timings = found["timings"]
        if timings["prompt_n"] != len(ids):
            raise RuntimeError(f"llama.cpp read {timings['prompt_n']} of {len(ids)} tokens")
        if timings["predicted_n"] != count:
            raise RuntimeError(f"llama.cpp wrote {timings['predicted_n']} of {count} tokens")
        return found

    def _ask(self, path: str, asked: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if asked is None else json.dumps(asked).encode()
        request = urllib.request.Request(
            self._address + path, body, {"Content-Type": "application/json"}
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def _best_of(found: Any) -> dict[int, float]:
    """The best ids of one token with their log-probabilities; empty for a token that ends within
    a character, of which the server tells none."""
    listed = found.get("completion_probabilities")
    return {best["id"]: best["logprob"] for best in listed[0]["top_logprobs"]} if listed else {}


MODEL = LlamaCppModel
