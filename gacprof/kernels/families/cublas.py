"""cuBLAS's C++ kernels: GEMV, small GEMM, split-K reductions, epilogues, BLAS 1 to 3, LU, QR.

``gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, …>`` gives types of
A, x, y and of the accumulator, then launch sizes that no document explains.
"""

from __future__ import annotations

import re

from gacprof.kernels.families.rule import Fields, Reader, Rule
from gacprof.kernels.kernel import Types
from gacprof.kernels.signature import Signature
from gacprof.kernels.vocabulary import ARCHITECTURES, OP_LETTERS, data_type, numbers

_INDEX = ("int", "long", "unsigned int")


def read_typed(signature: Signature) -> Fields:
    """Element types in the order of the arguments: A, B (or x), D (or y), accumulator."""
    flags: dict[str, str | int | bool] = {}
    words = [a for a in signature.arguments if a not in _INDEX]
    kinds = [kind for word in words if "<" not in word and (kind := data_type(word))]
    if len(kinds) == 1 and not re.search("…|[.]{3}", signature.text):
        kinds *= 4
    if signature.integers:
        flags["sizes"] = ",".join(map(str, signature.integers))
    base = signature.path.rsplit("::", 1)[-1]
    transposed = re.match(r"gemv2?([TN])_", base) or re.match(r"gemmSN_([TN]{2})_", base)
    a, b, out, accumulate = (*kinds, *[None] * 4)[:4]
    return {
        "types": Types(a, b, a, accumulate, out),
        "layout": transposed.group(1).lower() if transposed else None,
        "flags": tuple(sorted(flags.items())),
    }


def read_reduce(signature: Signature) -> Fields:
    """``splitKreduce_kernel<32, 16, int, partial, in, accumulator, out, …``"""
    kinds = [kind for word in signature.arguments[3:] if (kind := data_type(word))]
    a, b, accumulate, out = (*kinds, *[None] * 4)[:4]
    return {"types": Types(a, b, None, accumulate, out), "split_k": True}


def read_letter(signature: Signature) -> Fields:
    """Older names: ``sgemm_32x32x32_NN_vec``, ``magma_hgemmEx_kernel``, ``dgemm_largek``."""
    op = re.search(r"(?:^|_|::)(gc|[shdczi])gemm", signature.path)
    tile = re.search(r"\d+x\d+(?:x\d+)?", signature.path)
    layout = re.search(r"_([NTC]{2})(?:_|$)", signature.path)
    operand, accumulator = OP_LETTERS[op.group(1)] if op else (None, None)
    return {
        "types": Types(operand, operand, operand, accumulator, accumulator),
        "tile": numbers(tile.group()) if tile else None,
        "layout": layout.group(1).lower() if layout else None,
    }


def read_architecture(signature: Signature) -> Fields:
    return {"arch": ARCHITECTURES.get(signature.path.split("_")[0])}


def _rule(family: str, role: str, pattern: str, read: Reader = read_typed) -> Rule:
    return Rule(family, "cublas", role, rf"(?:^|::)(?:{pattern})", read)


_BLAS1 = "scal|axpy|copy|swap|asum|nrm2|iamax|iamin|rotm?g?(?:_real|_complex)?"
_BLAS2 = (
    r"[sdcz]?(?:tr[sm]v|t[bp][sm]v|sy[mr]v?|sp[mr]v?|he[mr]v?|hp[mr]v?|g[eb][rm]v?|sb\w*mv|sphp)"
)
_BLAS3 = r"trsm|trmm2?|syrk|syrkx|herk|symm|hemm|syherk|syhemm|geam|dgmm|trtri|trinv"
_LU = "getr[fis]|getri|geqr|gels|laswp|matinv|potrf|lu_|geqrSolve"

RULES = (
    _rule("splitk", "split_k_reduce", r"(?:batch\w*_)?splitK_?reduce_kernel", read_reduce),
    _rule("epilogue", "epilogue", r"epilogue::impl::globalKernel|cutlass_unfused_epilogue"),
    _rule("gemv", "gemv", r"gemv2?[TN]?(?:SP|NSP)?_kernel|gemvNSP|gemv_|batchGemv|gemv\w*kernel"),
    _rule("gemv", "gemv", r"gemvx::\w*kernel"),
    _rule("small_gemm", "gemm", r"gemmSN_|gemmk1_|gemm_kernel\dx\d|batch_gemm_kernel|gemmSmallN"),
    _rule("small_gemm", "gemm", r"\w*[sdczh]gemm\w*(?:largek|1x1|_core)", read_letter),
    _rule("gemm", "gemm", r"magma_\w*gemm|magma_bdmm|openai_\w*gemm|fermiPlus\w*gemm", read_letter),
    _rule("gemm", "gemm", r"(?:gc|[shdczi])gemm_\w*\d+x\d+|[shdczi]gemm\w*_kernel", read_letter),
    _rule("gemm", "gemm", r"cublasLt_fused_imma_\w*gemm|\w*imma_\w*gemm"),
    _rule("dot", "dot", r"(?:block_)?dot_kernel|dotc?u?_kernel|cublasDot"),
    _rule("dot", "dot_reduce", r"reduce_1Block_kernel|reduce_kernel_1Block"),
    _rule("blas1", "blas1", rf"(?:block_)?(?:{_BLAS1})_(?:64addr_)?kernel"),
    _rule("blas3", "blas3", rf"(?:\w+_)?[sdcz]?(?:{_BLAS3})(?:_|\d|$)"),
    _rule(
        "blas2", "blas2", rf"(?:cuds_)?(?:{_BLAS2})\w*(?:kernel|diag|exec|init|stage|ws_|direct)"
    ),
    _rule("blas2", "blas2", r"\w*(?:symv|trsv|syhemv|gpmv|ger_kernel|her2?_kernel)"),
    _rule("lapack", "lapack", rf"(?:\w+_)?(?:{_LU})"),
    _rule("transform", "copy", r"region_transform_ABC|transpose_readWrite|transpose_kernel"),
    _rule("transform", "copy", r"kernel_conjugate|trttp_kernel|tpttr_kernel|kernel_minv"),
    _rule("emulation", "auxiliary", r"prolog_|inverse_scaling|construct_c?bf16|cest_|esc_|sft_"),
    _rule(
        "emulation",
        "auxiliary",
        r"(?:re|de)duce_nmoduli|set_mantissa|max_exponent|get_minmax|max_scale",
    ),
    _rule("emulation", "auxiliary", r"cublasLt_(?:imma_emu|bf16x9)|inf_patching::"),
    _rule(
        "internal", "auxiliary", r"cublas(?:Lt)?::internal|nopHardware|nopCluster|cask_?\w*cublas"
    ),
    _rule(
        "internal",
        "auxiliary",
        r"internal::|init_device_workspace|xmma(?:__5x_cublas)?::|\w*P(?:tr|ointer)Array",
    ),
    Rule("internal", "cublas", "auxiliary", r"\bcublas|[cC]ublas\w*Params|_cublas\b", on="text"),
)
