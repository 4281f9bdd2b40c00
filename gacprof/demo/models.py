"""The demo's models: factors of random weights, or a trained model compressed.

The shapes are a Llama's; the ranks are real irregularity; the weights are random, since
latency does not need trained ones.

SVD-LLM truncates every projection to one ratio, so its ranks are what they happen to be (244 of 576
in SmolLM2). Calibration and evaluation text are this Python's own language reference, which is
wherever Python is: every second topic each, so that the two are disjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gacprof.checkpoint.scanning import scan
from gacprof.compressing.outcome import CompressResult
from gacprof.compressing.run import compress
from gacprof.core.errors import GacprofError
from gacprof.core.files import read_json, write_json, write_tensors, write_text
from gacprof.core.formatting import percent
from gacprof.evaluation import Quality, evaluate
from gacprof.resizing.from_gguf import IMPORTED

LAYERS = 4
HIDDEN = 1024
INTERMEDIATE = 2816
HEADS = 8
VOCABULARY = 2048

PUBLISHED_RANKS = (
    # layers 16 … 22 of Llama-3-8B-Instruct, each q, k, v, o
    (92, 109, 90, 100),
    (102, 94, 98, 103),
    (84, 103, 89, 100),
    (86, 101, 94, 102),
    (82, 112, 99, 101),
    (103, 113, 102, 103),
    (91, 113, 107, 105),
)
"""Ranks that magnitude scores allot at a retain ratio of 0.8: read from figure 2 of
J. Xin et al., arXiv 2604.09595 (CC BY 4.0). 28 values, one for each projection below."""

PROJECTIONS = (
    ("self_attn.q_proj", HIDDEN, HIDDEN),
    ("self_attn.k_proj", HIDDEN, HIDDEN),
    ("self_attn.v_proj", HIDDEN, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
    ("mlp.up_proj", INTERMEDIATE, HIDDEN),
    ("mlp.down_proj", HIDDEN, INTERMEDIATE),
)
"""(name, out features, in features) of a Llama layer's projections."""


def ranks() -> dict[str, int]:
    """Module name → rank, the published ranks dealt out in order."""
    dealt = [rank for layer in PUBLISHED_RANKS for rank in layer]
    names = [f"model.layers.{i}.{name}" for i in range(LAYERS) for name, _, _ in PROJECTIONS]
    return dict(zip(names, dealt, strict=True))


def write_demo_checkpoint(folder: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """Write the checkpoint in ASVD's layout as safetensors. ``folder`` must not exist."""
    import torch

    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    stored = getattr(torch, dtype)
    tensors: dict[str, torch.Tensor] = {}

    def random(name: str, *shape: int) -> None:
        values = draw.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        tensors[name] = torch.from_numpy(values).to(stored)

    random("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    random("lm_head.weight", VOCABULARY, HIDDEN)
    tensors["model.norm.weight"] = torch.ones(HIDDEN, dtype=stored)
    chosen = ranks()
    for i in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = torch.ones(HIDDEN, dtype=stored)
        for name, wide, deep in PROJECTIONS:
            module = f"model.layers.{i}.{name}"
            random(f"{module}.ALinear.weight", wide, chosen[module])
            random(f"{module}.BLinear.weight", chosen[module], deep)
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "config.json", _config(chosen, dtype))
    return folder


def _config(chosen: dict[str, int], dtype: str) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "truncation_ranks": chosen,
    }


def described() -> str:
    """One sentence for the page, so that nobody takes the model for more than it is."""
    misaligned = sum(rank % 8 != 0 for rank in ranks().values())
    return (
        f"Llama-shaped, hidden {HIDDEN}, {LAYERS} layers, every projection a factor pair; "
        f"{misaligned} of {len(ranks())} ranks are no multiple of 8 (ranks as published for "
        "Llama-3-8B, arXiv 2604.09595); weights are random and seeded, nothing is trained"
    )


METHOD, RATIO = "svd-llm", 0.15
WINDOWS = 4
"""Of 512 tokens of calibration text: as many tokens as the widest layer has inputs, and a little
more, so that a demo does not take longer. A real compression reads more."""
EVALUATED = 6_000
"""Tokens of evaluation text."""
WINDOW = 512

CALIBRATION, EVALUATION = "calibration.txt", "evaluation.txt"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """A dense model ``original``, compressed in ``folder``: as ``model`` with the method's own
    ranks, and what was worked out for that (``work``) serves other ranks."""

    original: Path
    folder: Path
    described: str

    def again(self, name: str, **sizes: Any) -> CompressResult:
        """Compressed as before into ``folder``/``name``, with other sizes."""
        return _compress(self.original, self.folder, name, **sizes)

    @property
    def _command(self) -> str:
        return (
            f"gacprof compress {self.original.name} --method {METHOD} --ratio {RATIO} "
            f"--calib calibration.txt --windows {WINDOWS} --work work"
        )

    @property
    def before(self) -> list[str]:
        """The compression as a command, in the demo's folder."""
        return [f"{self._command} --out model"]

    def after(self, tokens: str) -> list[str]:
        return [
            f"{self._command} --map cliffmap.json --tokens {tokens} --out planned",
            f"{self._command} --round 8 --out rounded-to-8",
            f"gacprof eval model rounded-to-8 planned {self.original.name} --text evaluation.txt "
            f"--window {WINDOW} --stride {WINDOW} --limit-tokens {EVALUATED}",
        ]


def compressed(original: Path, folder: Path, tell: Tell) -> Trained:
    """Compress ``original`` into ``folder``/model by 15 %."""
    write_texts(folder)
    described = _described(_compress(original, folder, "model"))
    tell(f"compress: {described}")
    return Trained(original, folder, described)


def _compress(original: Path, folder: Path, name: str, **sizes: Any) -> CompressResult:
    return compress(
        original, folder / name, method=METHOD, ratio=RATIO, calib=folder / CALIBRATION,
        windows=WINDOWS, work=folder / "work", **sizes,
    )  # fmt: skip


def _described(done: CompressResult) -> str:
    """One sentence for the page: what the model is, and what was compressed of it."""
    ranks = [rank for rank in done.sizes.values() if rank is not None]
    odd = sum(rank % 8 != 0 for rank in ranks)
    origin = ", its weights dequantised from GGUF" if _from_gguf(Path(done.source)) else ""
    return (
        f"{Path(done.source).name}{origin}: {done.method} took {percent(done.removed)} of the "
        f"parameters of all {len(ranks)} projections ({done.parameters_before:,} → "
        f"{done.parameters_after:,} in all); {odd} of {len(ranks)} ranks are no multiple of 8"
    )


def _from_gguf(folder: Path) -> bool:
    try:
        record = read_json(folder / "gacprof.json")
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("schema") == IMPORTED


def write_texts(folder: Path) -> tuple[Path, Path]:
    """``calibration.txt`` and ``evaluation.txt``: Python's reference, every second topic each.

    Topics quote one another: a paragraph of the first text is left out of the second.
    """
    from pydoc_data.topics import topics

    paths = folder / CALIBRATION, folder / EVALUATION
    seen: set[str] = set()
    for first, path in enumerate(paths):
        topic = "\n\n".join(topics[name] for name in sorted(topics)[first::2])
        paragraphs = [one for one in topic.split("\n\n") if one.strip() not in seen]
        seen = {one.strip() for one in paragraphs}
        write_text(path, "\n\n".join(paragraphs))
    return paths


def evaluated(trained: Trained, others: Sequence[str], device: str, tell: Tell) -> str:
    """Perplexity before and after, written to ``quality.json``; one sentence for the page."""
    folder = trained.folder
    models = [*(folder / name for name in ("model", *others)), trained.original]
    found = evaluate(
        models, text=folder / EVALUATION, window=WINDOW, stride=WINDOW, limit_tokens=EVALUATED,
        device=device,
    )  # fmt: skip
    write_json(folder / "quality.json", found.as_dict())
    said = f"perplexity on Python's reference ({found.tokens - 1:,} tokens): {_listed(found)}"
    tell(said)
    return said


def _listed(found: Quality) -> str:
    parts = []
    for one in found.models:
        value = one.perplexity.value if one.perplexity else None
        text = f"{one.model} {'not finite' if value is None else f'{value:.2f}'}"
        if one.perplexity_change is not None:
            change = one.perplexity_change
            low, middle, high = (
                percent(v, signed=True) for v in (change.low, change.value, change.high)
            )
            text += f" ({middle}, {low} to {high})"
        parts.append(text)
    return ", ".join(parts)


def refuse_unusable(original: Path) -> None:
    """Raise :class:`GacprofError` where ``original`` is no dense model with its tokenizer."""
    reason = ""
    if not (original / "config.json").is_file() or not any(original.glob("tokenizer*")):
        reason = f"no trained model with a tokenizer lies in {original}"
    elif any(module.kind not in ("dense", "embedding") for module in scan(original).modules):
        reason = f"{original} is compressed already"
    if reason:
        raise GacprofError(f"{reason}: without --model the demo makes one of random weights")
