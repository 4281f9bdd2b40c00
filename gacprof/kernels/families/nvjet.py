"""nvjet: cuBLAS's run-time generated kernels for Hopper and Blackwell (cuBLAS ≥ 12.8).

    nvjet_[sm90_]hsh_128x256_64x4_2x1_[2cta_]v_bz_coopA_TNN
                 types M×N  K×stages cluster raster flags layout
    nvjet_sm120_tst_mma_128x96x64_2_32x48x64_tmaAB_bz_TNNN         (no wgmma, no tcgen05)
                        tile      stages  warp's tile

Types are A, compute, D, or A, B, C, compute, D. Operands come through TMA.
"""

from __future__ import annotations

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.kernel import Types
from gacprof.kernels.signature import Signature
from gacprof.kernels.vocabulary import NVJET_TYPES, numbers, sort_tokens

_KINDS = {
    "arch": r"sm\d+[af]?",
    "pair": r"\d+x\d+f?",
    "triple": r"\d+x\d+x\d+",
    "number": r"\d+",
    "raster": r"[vh]",
    "layout": r"[NTnt]{2,4}",
}


def read(signature: Signature) -> Fields:
    tokens = signature.path.split("_")[1:]
    found, rest = sort_tokens(tokens, _KINDS)
    letters = rest.pop(0) if rest else ""
    flags: dict[str, str | int | bool] = dict.fromkeys(rest, True)
    if len(letters) == 5 and (addend := NVJET_TYPES.get(letters[2])):
        flags["c_type"] = addend
    if found["raster"]:
        flags["raster"] = found["raster"][0]
    if len(found["triple"]) > 1:
        flags["warp_tile"] = found["triple"][1]
    return {
        "arch": found["arch"][0] if found["arch"] else None,
        "types": _types(letters),
        **_shape(found),
        "layout": found["layout"][-1].lower() if found["layout"] else None,
        "split_k": any(word.lower().startswith("splitk") for word in rest),
        "flags": tuple(sorted(flags.items())),
    }


def _types(letters: str) -> Types:
    known = [NVJET_TYPES.get(letter) for letter in letters]
    if len(known) < 3:
        return Types()
    a, b = (known[0], known[1]) if len(known) > 3 else (known[0], known[0])
    return Types(a, b, a, known[-2], known[-1])


def _shape(found: dict[str, list[str]]) -> Fields:
    pairs = [numbers(pair.rstrip("f")) for pair in found["pair"]]  # clusters: 2x1 and 2x1f
    if found["triple"]:
        stages = int(found["number"][0]) if found["number"] else None
        return {"tile": numbers(found["triple"][0]), "stages": stages}
    if len(pairs) < 2:
        return {"tile": pairs[0] if pairs else None}
    (depth, stages), cluster = pairs[1], pairs[2] if len(pairs) > 2 else None
    return {"tile": (*pairs[0], depth), "stages": stages, "cluster": cluster}


RULES = (
    Rule("nvjet", "cublas", "auxiliary", r"^nvjet_imma_gemm_\w*(set_device_ptrs|_ker$)"),
    Rule("nvjet", "cublas", "gemm", r"^nvjet_", read),
)
