"""Reading the names of attention kernels: FlashAttention 2 to 4, mem-efficient, cuDNN's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gacprof.kernels.cublas_names import Fields
from gacprof.kernels.kernel import Types
from gacprof.kernels.name_parts import Signature, Words, data_type, data_types, numbers, template

_FORWARD: Mapping[int, str] = {
    5: "dropout causal even_mn even_k return_softmax",
    6: "dropout causal local even_mn even_k return_softmax",
    7: "dropout causal local alibi even_mn even_k return_softmax",
    8: "dropout causal local alibi even_mn even_k softcap return_softmax",
}
_SPLIT: Mapping[int, str] = {
    5: "causal even_mn even_k split append_kv",
    6: "causal local even_mn even_k split append_kv",
    7: "causal local alibi even_mn even_k split append_kv",
    8: "causal local alibi even_mn even_k softcap split append_kv",
}
_BACKWARD: Mapping[int, str] = {
    4: "dropout causal even_mn even_k",
    5: "dropout causal local even_mn even_k",
    6: "dropout causal local alibi even_mn even_k",
    7: "dropout causal local alibi even_mn even_k softcap",
}
SWITCHES = {
    "flash_fwd_kernel": _FORWARD,
    "flash_fwd_splitkv_kernel": _SPLIT,
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": _BACKWARD,
    "flash_bwd_dq_dk_dv_loop_kernel": _BACKWARD,
}
"""Kernel → number of its boolean template arguments → their meanings. They grew over time
(flash_fwd_kernel.h of FlashAttention 2.0 to 2.7)."""


def _types(kind: str | None, out: str | None = None, accumulate: str = "float32") -> Types:
    return Types(kind, kind, kind, accumulate, out) if kind else Types()


def read_flash2(signature: Signature) -> Fields:
    """head_dim's template, tiles and switches are template arguments.

    flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, …, half_t, …>, B1 … B8>
                                             template, rows of q, rows of k, warps
    """
    traits = next((a for a in signature.arguments if "kernel_traits" in a), "")
    arguments = template(traits)[1]
    sizes = [int(a) for a in arguments[:4] if a.isdigit()]
    kind = next(iter(data_types([a for a in arguments if "_t" in a])), None)
    names = SWITCHES.get(signature.base, {}).get(len(signature.booleans), "").split()
    flags: dict[str, Any] = dict(zip(names, signature.booleans, strict=False))
    flags["warps"] = sizes[3] if len(sizes) == 4 else None
    if signature.base == "flash_fwd_splitkv_combine_kernel" and len(signature.integers) == 2:
        flags["block_m"], flags["log_max_splits"] = signature.integers
        flags.update(zip(["even_k"], signature.booleans, strict=False))
    return {
        "types": _types(kind, out=kind),
        "template": sizes[0] if sizes else None,
        "tile": (sizes[1], sizes[2]) if len(sizes) > 2 else None,
        "split_k": bool(flags.get("split", False)),
        "flags": flags,
    }


def read_flash3(signature: Signature) -> Fields:
    """``FlashAttnFwdSm90<CollectiveMainloopFwdSm90<stages, cluster, tile, head_dim_v, type, …``"""
    mainloop = next((a for a in signature.arguments if "Mainloop" in a), "")
    arguments = template(mainloop)[1]
    shapes = [tuple(map(int, re.findall(r"\bC<(\d+)>", a))) for a in arguments if "tuple<" in a]
    sizes = [int(a) for a in arguments if a.isdigit()]
    kinds = data_types([a for a in arguments if a.endswith("_t") or a == "float"])
    arch = re.search(r"Sm(\d+)$", signature.path)
    return {
        "arch": f"sm{arch[1]}" if arch else None,
        "types": _types(kinds[0], accumulate=kinds[-1]) if kinds else Types(),
        "stages": sizes[0] if sizes else None,
        "cluster": shapes[0] if shapes else None,
        "tile": shapes[1][:2] if len(shapes) > 1 else None,
        "template": shapes[1][2] if len(shapes) > 1 and len(shapes[1]) > 2 else None,
    }


def read_flash4(signature: Signature) -> Fields:
    """``kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_…``

    Written in CuTe's Python: the class tells the architecture, the first operand its type
    (``tensorptrbf16gmem…``, in some versions); newer versions put ``bf16_head_dim128_tile128x128``
    in front of it all.
    """
    path = signature.path
    arch = re.search(r"(?:Forward|Backward)\w*?Sm(\d+)", path)
    kind = re.search(r"tensorptr(b?f16|f8\w*?)gmem", path) or re.search(r"_(bf16|fp16)_", path)
    head_dim = re.search(r"_head_dim(\d+)(?=_)", path)
    tile = re.search(r"_tile(\d+x\d+)(?=_)", path)
    return {
        "arch": f"sm{arch[1]}" if arch else None,
        "types": _types(data_type(kind[1]) if kind else None),
        "template": int(head_dim[1]) if head_dim else None,
        "tile": numbers(tile[1]) if tile else None,
    }


_EFFICIENT = {
    "arch": r"sm\d+",
    "tile": r"\d+x\d+",
    "template": r"k(\d+)",  # the largest head_dim
    "type": r"f16|bf16|f32",
}


def read_efficient(signature: Signature) -> Fields:
    """``fmha_cutlassF_f16_aligned_64x128_rf_sm80``; B is backward."""
    words = Words(signature.path.split("_")[2:], _EFFICIENT)
    kind = data_type(words.get("type") or "")
    types = Types(kind, kind, kind, "float32", kind)
    return words.fields() | {"types": types, "flags": dict.fromkeys(words.rest, True)}


_CUDNN = {
    "arch": r"sm\d+[af]?",
    "cluster": r"cga(\d+x\d+x\d+)",
    "triple": r"\d+x\d+x\d+",
    "type": r"f16|bf16|f32|e4m3|e5m2|fp8",
    "number": r"\d+",
    "kernel": r"kernel\d+",
}


def read_cudnn(signature: Signature) -> Fields:
    """``cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_…``

    Rows of q by rows of k by head_dim, then warps: so in the sources of the two kernels of
    this name that libtorch_cuda 2.13 carries for run-time compilation.
    """
    tokens = signature.path.split("_")
    words = Words(tokens[tokens.index("sdpa") + 1 if "sdpa" in tokens else 0 :], _CUDNN)
    shapes, number = words.shapes("triple"), words.get("number")
    flags: dict[str, Any] = {word: True for word in words.rest if word != "knob"}
    flags["knob"] = int(number) if "knob" in words.rest and number else None
    flags["warps"] = words.get("triple", 1)
    kind = data_type(words.get("type") or "")
    return words.fields() | {
        "types": Types(kind, kind, kind, "float32"),
        "tile": shapes[0][:2] if shapes else None,
        "template": shapes[0][2] if shapes else None,
        "flags": flags,
    }
