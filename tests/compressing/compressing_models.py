"""Small dense models made for the tests, and what models compute."""

import torch
import transformers

import gacprof
from gacprof.checkpoint import open_tensors
from gacprof.core.tasks import Tasks
from gacprof.extras.compress.calibration import calibration_of
from gacprof.extras.compress.state import State, Work

CONFIG = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 128,
}


def make_model(folder, dtype=torch.float32, **changed):
    """A Llama of random weights with a spectrum that falls, saved to ``folder``."""
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG | changed))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                u, s, v = torch.linalg.svd(torch.randn(weight.shape), full_matrices=False)
                fall = torch.linspace(1.5, 0.02, len(s)) ** 2
                weight.copy_((u * fall) @ v)
            else:
                weight.copy_(1 + 0.2 * torch.randn(weight.shape))
            if name.endswith("bias"):
                weight.copy_(0.1 * torch.randn(weight.shape))
    model.to(dtype).save_pretrained(folder)
    return folder


def make_phi3(folder):
    """A small Phi-3, which stores gate and up as one weight, and q, k and v as another."""
    torch.manual_seed(2)
    config = transformers.Phi3Config(
        hidden_size=64, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, pad_token_id=0,
    )  # fmt: skip
    transformers.Phi3ForCausalLM(config).save_pretrained(folder)
    return folder


def logits_of(folder, ids):
    with torch.no_grad():
        found = gacprof.load_model(folder, dtype="float32")(ids).logits
    return found


def work_in(folder, model, ids):
    """What a method works with, its results in ``folder``."""
    folder.mkdir(exist_ok=True)
    reader = open_tensors(model)
    calibration = calibration_of(ids, reader.inventory)
    return Work(reader, State(folder), calibration, "cpu", lambda line: None, Tasks())
