"""A tiny Llama with a tokenizer of single characters, for tests of what models make of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHARACTERS = "\n !\"',-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
POSITIONS = 64

TEXT = (
    "The county jury said that no evidence was found. The mayor, who was asked, had none.\n"
    "Rates rose by 3 in May; by 12 in June. Was it so? It was: two of them said so.\n"
) * 4


def tiny_model(seed: int = 0, **settings: Any) -> Any:
    """A model of random weights, large enough that its predictions are far from even."""
    import torch
    import transformers

    torch.manual_seed(seed)
    defaults = {
        "vocab_size": len(CHARACTERS) + 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    config = transformers.LlamaConfig(**defaults | settings)
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def tiny_tokenizer(characters: str = CHARACTERS, begins: bool = False) -> Any:
    """One token a character, id 0 for all others; with ``begins`` it sets ``<s>`` (id 0) first."""
    from tokenizers import Tokenizer, models, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0} | {c: i for i, c in enumerate(characters, 1)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<s>"))
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<s>")


def write_llama(folder: Path, **settings: Any) -> Path:
    """A folder with a model alone."""
    tiny_model(**settings).save_pretrained(folder)
    return folder


def write_tiny(folder: Path, seed: int = 0, begins: bool = False, **settings: Any) -> Path:
    """A folder with model and tokenizer."""
    write_llama(folder, seed=seed, **settings)
    tiny_tokenizer(begins=begins).save_pretrained(folder)
    return folder
