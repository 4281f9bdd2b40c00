"""Attention kernels: FlashAttention 1 to 4, mem-efficient, cuDNN's generated ones.

FlashAttention-2 gives head_dim template, tiles and switches as template arguments:

    flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, …, half_t, …>, B1 … B8>
                                             template, rows of q, rows of k, warps

The switches grew over time, so their number tells the version (flash_fwd_kernel.h of
FlashAttention 2.0 to 2.7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.kernel import Types
from gacprof.kernels.signature import Signature, template
from gacprof.kernels.vocabulary import data_type, data_types, numbers, sort_tokens

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


def read_flash2(signature: Signature) -> Fields:
    traits = next((a for a in signature.arguments if "kernel_traits" in a), "")
    arguments = template(traits)[1]
    sizes = [int(a) for a in arguments[:4] if a.isdigit()]
    kind = next((t for a in arguments if "_t" in a and (t := data_type(a))), None)
    flags: dict[str, str | int | bool] = {}
    base = signature.path.rsplit("::", 1)[-1]
    known = SWITCHES.get(base, {}).get(len(signature.booleans), "").split()
    flags.update(zip(known, signature.booleans, strict=False))
    if len(sizes) == 4:
        flags["warps"] = sizes[3]
    if base == "flash_fwd_splitkv_combine_kernel" and len(signature.integers) == 2:
        flags["block_m"], flags["log_max_splits"] = signature.integers
        flags.update(zip(["even_k"], signature.booleans, strict=False))
    return {
        "types": Types(kind, kind, kind, "float32", kind) if kind else Types(),
        "template": sizes[0] if sizes else None,
        "tile": (sizes[1], sizes[2]) if len(sizes) > 2 else None,
        "split_k": bool(flags.get("split", False)),
        "flags": tuple(sorted(flags.items())),
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
        "arch": f"sm{arch.group(1)}" if arch else None,
        "types": Types(kinds[0], kinds[0], kinds[0], kinds[-1], None) if kinds else Types(),
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
    element = data_type(kind.group(1)) if kind else None
    head_dim = re.search(r"_head_dim(\d+)(?=_)", path)
    tile = re.search(r"_tile(\d+x\d+)(?=_)", path)
    return {
        "arch": f"sm{arch.group(1)}" if arch else None,
        "types": Types(element, element, element, "float32", None) if element else Types(),
        "template": int(head_dim.group(1)) if head_dim else None,
        "tile": numbers(tile.group(1)) if tile else None,
    }


_EFFICIENT = {
    "arch": r"sm\d+",
    "pair": r"\d+x\d+",
    "max_k": r"k\d+",
    "type": r"f16|bf16|f32",
}


def read_efficient(signature: Signature) -> Fields:
    """``fmha_cutlassF_f16_aligned_64x128_rf_sm80``; B is backward, ``k64`` the largest head_dim."""
    found, rest = sort_tokens(signature.path.split("_")[2:], _EFFICIENT)
    kind = data_type(found["type"][0]) if found["type"] else None
    flags: dict[str, str | int | bool] = dict.fromkeys(rest, True)
    return {
        "arch": found["arch"][0] if found["arch"] else None,
        "types": Types(kind, kind, kind, "float32", kind),
        "tile": numbers(found["pair"][0]) if found["pair"] else None,
        "template": int(found["max_k"][0][1:]) if found["max_k"] else None,
        "flags": tuple(sorted(flags.items())),
    }


_CUDNN = {
    "arch": r"sm\d+[af]?",
    "cluster": r"cga\d+x\d+x\d+",
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
    tokens = tokens[tokens.index("sdpa") + 1 :] if "sdpa" in tokens else tokens
    found, rest = sort_tokens(tokens, _CUDNN)
    shapes = [numbers(triple) for triple in found["triple"]]
    kind = data_type(found["type"][0]) if found["type"] else None
    flags: dict[str, str | int | bool] = {word: True for word in rest if word != "knob"}
    if "knob" in rest and found["number"]:
        flags["knob"] = int(found["number"][0])
    if len(shapes) > 1:
        flags["warps"] = found["triple"][1]
    return {
        "arch": found["arch"][0] if found["arch"] else None,
        "types": Types(kind, kind, kind, "float32", None),
        "tile": shapes[0][:2] if shapes else None,
        "template": shapes[0][2] if shapes else None,
        "cluster": numbers(found["cluster"][0][3:]) if found["cluster"] else None,
        "flags": tuple(sorted(flags.items())),
    }


def _flash2(pattern: str, role: str) -> Rule:
    return Rule("flash2", "flash_attention", role, rf"(?:^|::)(?:{pattern})$", read_flash2)


def _flash4(pattern: str, role: str) -> Rule:
    return Rule("flash4", "flash_attention", role, pattern, read_flash4)


_BACK = "attention_backward"
RULES: Sequence[Rule] = (
    _flash2("flash_fwd_kernel|flash_fwd_splitkv_kernel", "attention"),
    _flash2("flash_fwd_splitkv_combine_kernel", "attention_combine"),
    _flash2("flash_bwd_dot_do_o_kernel|flash_bwd_clear_dkvaccum_kernel", "attention_prepare"),
    _flash2("flash_bwd_convert_dq_kernel|flash_bwd_convert_dkv_kernel", "attention_convert"),
    _flash2(r"flash_bwd_\w*kernel", _BACK),
    Rule("flash3", "flash_attention", "attention", r"FlashAttnFwd(?!Combine)", read_flash3),
    Rule("flash3", "flash_attention", _BACK, r"FlashAttnBwd(?!P)", read_flash3),
    Rule("flash3", "flash_attention", "attention_combine", r"FlashAttnFwdCombine"),
    Rule("flash3", "flash_attention", "attention_prepare", r"^flash::(FlashAttn|prepare_\w+)"),
    _flash4("AttentionForwardCombine", "attention_combine"),
    _flash4("AttentionBackwardPreprocess", "attention_prepare"),
    _flash4("AttentionBackwardPostprocess", "attention_convert"),
    _flash4(r"flash_attn\w*cute\w*(?:bwd|Backward)|FlashAttentionBackwardSm", _BACK),
    _flash4(r"flash_attn\w*cute|FlashAttentionForwardSm", "attention"),
    Rule("flash1", "flash_attention", "attention", r"^(fmha_fwd_loop|fmha::fmha_fwd)"),
    Rule("flash1", "flash_attention", _BACK, r"^(fmha_bwd_dq_dk_dv_loop|fmha::fmha_bwd)"),
    Rule("mem_efficient", "mem_efficient", "attention", r"^fmha_cutlassF", read_efficient),
    Rule("mem_efficient", "mem_efficient", _BACK, r"^fmha_cutlassB", read_efficient),
    Rule("mem_efficient", "mem_efficient", "attention", r"^PyTorchMemEffAttention::Attention"),
    Rule("cudnn_sdpa", "cudnn", _BACK, r"^cudnn_\w*(sdpa|mha|attention)\w*bprop", read_cudnn),
    Rule("cudnn_sdpa", "cudnn", "attention", r"^cudnn_\w*(sdpa|mha|attention)", read_cudnn),
)
