"""Hugging Face transformers as an engine: forward passes as ``generate`` makes them, by hand.

The token is chosen by argmax; ``generate``'s own bookkeeping is left out, as servers leave it out.
Runs by itself (:mod:`.worker`): nothing of gacprof here.
"""

from __future__ import annotations

import time
from typing import Any


class TransformersModel:
    _model: Any = None
    _misfits: dict[str, Any]

    def open(
        self, model: str, threads: int, positions: int, dtype: str | None, trust: bool
    ) -> dict[str, Any]:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        made: Any
        made, report = transformers.AutoModelForCausalLM.from_pretrained(
            model, torch_dtype=dtype or "auto", local_files_only=True, trust_remote_code=trust,
            output_loading_info=True,
        )  # fmt: skip
        self._misfits = {kind: sorted(names)[:3] for kind, names in report.items() if names}
        self._model = made.eval()
        config = made.config.get_text_config()
        return {
            "version": transformers.__version__,
            "beneath": {"torch": torch.__version__},
            "device": "cpu",
            "dtype": str(made.dtype).removeprefix("torch."),
            "vocabulary": int(config.vocab_size),
            "parameters": sum(p.numel() for p in made.parameters()),
            "positions": int(getattr(config, "max_position_embeddings", 0)),
        }

    def prefill(self, ids: list[int]) -> float:
        return self._prompt(ids)[0]

    def decode(self, ids: list[int], steps: int) -> float:
        _, cache, token = self._prompt(ids)
        begun = time.perf_counter_ns()
        self._steps(cache, token, steps)
        return (time.perf_counter_ns() - begun) / 1e3 / steps

    def greedy(self, ids: list[int], count: int) -> list[int]:
        _, cache, token = self._prompt(ids)
        return [int(token), *self._steps(cache, token, count - 1)]

    def probe(self, ids: list[int], count: int, file: str) -> dict[str, Any]:
        """The likeliest tokens, and the prompt's logits [prompt, vocabulary] in ``file`` (.npy)."""
        import numpy as np
        import torch

        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if self._misfits.get(kind):
                raise ValueError(f"{kind.replace('_', ' ')}: {self._misfits[kind]}")
        np.save(file, self._model(torch.tensor([ids])).logits[0].numpy())
        return {"tokens": self.greedy(ids, count)}

    def _prompt(self, ids: list[int]) -> tuple[float, Any, Any]:
        import torch

        prompt = torch.tensor([ids])
        begun = time.perf_counter_ns()
        output = self._model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        token = output.logits[:, -1:].argmax(-1)
        int(token)
        return (time.perf_counter_ns() - begun) / 1e3, output.past_key_values, token

    def _steps(self, cache: Any, token: Any, count: int) -> list[int]:
        found = []
        for _ in range(count):
            output = self._model(input_ids=token, past_key_values=cache, use_cache=True)
            token, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
            found.append(int(token))
        return found


MODEL = TransformersModel
