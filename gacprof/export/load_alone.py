"""Logits of an exported folder in a process that cannot import gacprof, as a user would load it.

Arguments: the folder, a safetensors file with token ids [sequences, tokens] as ``ids``, and the
file to write the float32 model's ``logits`` to.
"""

import sys

sys.modules["gacprof"] = None  # type: ignore[assignment]

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

folder, ids, logits = sys.argv[1:]
load = AutoModelForCausalLM.from_pretrained
model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
with torch.inference_mode():
    output = model(input_ids=load_file(ids)["ids"], use_cache=False)
save_file({"logits": output.logits.double().contiguous()}, logits)
