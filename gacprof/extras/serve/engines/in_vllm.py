"""vLLM as an engine: its scheduler, runner and sampler, one step of the engine a token.

``LLMEngine.step`` is timed: schedule, forward pass, sampling, output. The engine's core runs in
this process, so that a step is over when it returns; prefix caching and asynchronous scheduling are
off, so that a prompt is read whole and a step is one token. Eager: compiling would take minutes a
model, and replaces no matrix product. Runs by itself (:mod:`.worker`): nothing of gacprof here.
"""

from __future__ import annotations

import os
import time
from typing import Any

KV_CACHE_GIB = "1"


class VllmModel:
    _engine: Any = None
    _requests = 0

    def open(
        self, model: str, threads: int, positions: int, dtype: str | None, trust: bool
    ) -> dict[str, Any]:
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE=KV_CACHE_GIB,
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL="WARNING",
            HF_HUB_OFFLINE="1",
        )
        import torch
        import vllm
        from vllm.platforms import current_platform

        made = vllm.LLM(
            model=model,
            dtype=dtype or "auto",
            max_model_len=positions,
            max_num_batched_tokens=max(positions, 2048),
            max_num_seqs=1,
            enforce_eager=True,
            enable_prefix_caching=False,
            async_scheduling=False,
            skip_tokenizer_init=True,
            trust_remote_code=trust,
            seed=0,
        )
        self._engine = made.llm_engine
        config = self._engine.model_config
        return {
            "version": vllm.__version__,
            "beneath": {"torch": torch.__version__},
            "device": current_platform.device_type,
            "dtype": str(config.dtype).removeprefix("torch."),
            "vocabulary": int(config.get_vocab_size()),
            "threads": torch.get_num_threads(),
        }

    def prefill(self, ids: list[int]) -> float:
        return self._run(ids, 1)[0][0]

    def decode(self, ids: list[int], steps: int) -> float:
        times = self._run(ids, steps + 1)[0][1:]
        return sum(times) / len(times)

    def greedy(self, ids: list[int], count: int) -> list[int]:
        return self._run(ids, count)[1]

    def _run(self, ids: list[int], count: int) -> tuple[list[float], list[int]]:
        """The time (µs) of each of ``count`` tokens after the prompt, and the tokens."""
        from vllm import SamplingParams

        self._requests += 1
        greedy = SamplingParams(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        times: list[float] = []
        tokens: list[int] = []
        self._engine.add_request(str(self._requests), {"prompt_token_ids": ids}, greedy)
        begun = time.perf_counter_ns()
        while len(tokens) < count:
            outputs = self._engine.step()
            now = time.perf_counter_ns()
            if not outputs:
                continue
            if outputs[0].num_cached_tokens:
                raise RuntimeError("vLLM took a part of the prompt from its cache")
            new = list(outputs[0].outputs[0].token_ids)
            if len(new) != len(tokens) + 1:
                raise RuntimeError(f"a step of vLLM gave {len(new) - len(tokens)} tokens")
            times.append((now - begun) / 1e3)
            tokens, begun = new, now
        return times, tokens


MODEL = VllmModel
