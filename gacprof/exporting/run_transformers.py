"""Load an exported folder as a user would and continue a prompt. Run as a script, in isolation.

A JSON request comes on stdin: ``folder``, ``prompt`` (token ids), ``tokens``, ``logits`` (a file
to write the prompt's logits to), ``own_code`` (whether the folder's code may be run). The answer is
the last line of stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

sys.modules["gacprof"] = None  # type: ignore[assignment]  # importing it fails


def main() -> None:
    import numpy as np
    import torch
    import transformers

    request = json.load(sys.stdin)
    transformers.utils.logging.set_verbosity_error()
    model: Any
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        request["folder"],
        trust_remote_code=request["own_code"],
        torch_dtype=torch.float32,
        output_loading_info=True,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            sys.exit(f"{kind.replace('_', ' ')}: {sorted(report[kind])[:3]}")
    model.eval()
    # the folder's own generation_config.json may sample or stop early
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    ids = torch.tensor([request["prompt"]])
    with torch.no_grad():
        np.save(request["logits"], model(ids).logits[0].numpy())
        new = request["tokens"]
        made = model.generate(ids, max_new_tokens=new, min_new_tokens=new, do_sample=False)
    tokens = made[0, ids.shape[1] :].tolist()
    print(json.dumps({"version": transformers.__version__, "tokens": tokens}))


if __name__ == "__main__":
    main()
