"""What the demo starts from: a Llama of random weights in published shapes, since latency needs no
trained ones, and two texts."""

from __future__ import annotations

from pathlib import Path

from gacprof.core.files import write_json, write_text

LAYERS, HIDDEN, INTERMEDIATE, HEADS, VOCABULARY = 4, 1024, 2816, 8, 2048

PUBLISHED_RANKS = (  # layers 16 … 22 of Llama-3-8B-Instruct, each q, k, v, o
    *(92, 109, 90, 100, 102, 94, 98, 103, 84, 103, 89, 100, 86, 101),
    *(94, 102, 82, 112, 99, 101, 103, 113, 102, 103, 91, 113, 107, 105),
)
"""Ranks that magnitude scores allot at a retain ratio of 0.8: read from figure 2 of
J. Xin et al., arXiv 2604.09595 (CC BY 4.0). 28 values, one for each projection below."""
PROJECTIONS = (
    *((f"self_attn.{part}_proj", HIDDEN, HIDDEN) for part in "qkvo"),
    ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
    ("mlp.up_proj", INTERMEDIATE, HIDDEN),
    ("mlp.down_proj", HIDDEN, INTERMEDIATE),
)
"""(name, out features, in features) of a layer's projections."""
DESCRIBED = (
    f"a Llama of random weights, hidden {HIDDEN}, {LAYERS} layers, every projection a factor pair "
    "of the ranks published for Llama-3-8B (arXiv 2604.09595)"
)


def ranks() -> dict[str, int]:
    """Module name → rank, the published ranks dealt out in order."""
    names = [f"model.layers.{i}.{name}" for i in range(LAYERS) for name, _, _ in PROJECTIONS]
    return dict(zip(names, PUBLISHED_RANKS, strict=True))


def write_demo_checkpoint(folder: Path, dtype: str = "float32") -> Path:
    """Write random weights in ASVD's layout as safetensors. ``folder`` must not exist."""
    import torch

    from gacprof.resizing.writers import save_tensors

    chosen, draw = ranks(), torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"model.norm": (HIDDEN,)}
    shapes |= dict.fromkeys(("model.embed_tokens", "lm_head"), (VOCABULARY, HIDDEN))
    for i in range(LAYERS):
        norms = (f"model.layers.{i}.{at}_layernorm" for at in ("input", "post_attention"))
        shapes |= dict.fromkeys(norms, (HIDDEN,))
        for name, out, into in PROJECTIONS:
            module = f"model.layers.{i}.{name}"
            shapes[f"{module}.ALinear"] = out, chosen[module]
            shapes[f"{module}.BLinear"] = chosen[module], into
    folder.mkdir(parents=True)
    tensors = {
        f"{name}.weight": (
            torch.randn(shape, generator=draw) / shape[-1] ** 0.5
            if shape[1:]
            else torch.ones(shape)
        ).to(getattr(torch, dtype))
        for name, shape in shapes.items()
    }
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": dtype, "truncation_ranks": chosen,
    }  # fmt: skip
    write_json(folder / "config.json", config)
    return folder


def write_texts(folder: Path) -> tuple[Path, Path]:
    """``calibration.txt`` and ``evaluation.txt``: this Python's own language reference, which is
    wherever Python is, every second topic each.

    Topics quote one another: a paragraph of the first text is left out of the second.
    """
    from pydoc_data.topics import topics

    paths = folder / "calibration.txt", folder / "evaluation.txt"
    seen: set[str] = set()
    for first, path in enumerate(paths):
        topic = "\n\n".join(topics[name] for name in sorted(topics)[first::2])
        paragraphs = [one for one in topic.split("\n\n") if one.strip() not in seen]
        seen = {one.strip() for one in paragraphs}
        write_text(path, "\n\n".join(paragraphs))
    return paths
