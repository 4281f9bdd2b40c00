"""The table of rules: which names are of which family, what such a kernel does, who reads it.

The first rule that claims a name decides, so the specific stand before the general. A new
source of kernels is its rows here and, if its names say more than the family, a reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gacprof.kernels import attention_names as attention
from gacprof.kernels import cublas_names as cublas
from gacprof.kernels import cutlass_names as cutlass
from gacprof.kernels.cublas_names import ARCHITECTURES, NATIVE_OP, Fields
from gacprof.kernels.kernel import Types
from gacprof.kernels.name_parts import Signature, data_types

Reader = Callable[[Signature], Fields]


def nothing_more(signature: Signature) -> Fields:
    """For families whose names say no more than the family."""
    return {}


class Rule(NamedTuple):
    """Names in whose path (or whole text) the pattern is found are of this family."""

    provider: str
    family: str
    role: str
    pattern: str
    read: Reader
    on_text: bool

    def claims(self, signature: Signature) -> bool:
        searched = signature.text if self.on_text else signature.path
        return re.search(self.pattern, searched) is not None


Row = tuple[str, str] | tuple[str, str, Reader]


def _rules(
    rows: Iterable[Row],
    read: Reader = nothing_more,
    around: tuple[str, str] = ("", ""),
    on_text: bool = False,
) -> list[Rule]:
    """Rules from rows of ("provider family role", pattern[, reader])."""
    made = []
    for row in rows:
        provider, family, role = row[0].split()
        pattern = around[0] + row[1] + around[1]
        made.append(
            Rule(provider, family, role, pattern, read if len(row) == 2 else row[2], on_text)
        )
    return made


def read_inductor(signature: Signature) -> Fields:
    """``triton_poi_fused_add_mul_0``, as torch.compile writes them: poi is pointwise, red a
    looped and per a persistent reduction, tem a template (GEMM, attention), for a foreach."""
    found = re.match(r"^triton_([a-z]+)_(?:fused_?)?(\w*?)_?(\d*)$", signature.path)
    return {"flags": {"ops": found[2].strip("_") or None} if found else {}}


def read_specialised(signature: Signature) -> Fields:
    """Triton before 3.0 appended how it specialised each argument, ``matmul_kernel_0d1d2d3de4c``:
    d divisible by 16, e by 8, c equal to 1."""
    found = re.search(r"_((?:\d+d?c?e?){2,})$", signature.path)
    suffix = found[1] if found else ""
    total, aligned = (len(re.findall(argument, suffix)) for argument in (r"\d+", r"\d+d"))
    return {"flags": {"arguments": total, "divisible_by_16": aligned}}


def read_aten(signature: Signature) -> Fields:
    """``vectorized_elementwise_kernel<4, FillFunctor<Half>, …>``: a fill of 4 elements a thread."""
    functor = next((a for a in signature.arguments if not re.fullmatch(r"-?\d+", a)), "")
    element = r"c10::\w+|(?:(?<=[<(])|(?<=, ))(?:float|double|long|bool)\b"
    kinds = data_types(re.findall(element, functor))
    flags: dict[str, Any] = {}
    if "vectorized" in signature.base and signature.integers:
        flags["vector"] = signature.integers[0]
    return {"types": Types(kinds[0], out=kinds[0]) if kinds else Types(), "flags": flags}


def read_copy(signature: Signature) -> Fields:
    """``Memcpy HtoD (Pageable -> Device)`` and ``[CUDA memcpy Host-to-Device]``."""
    words = {"host": "H", "device": "D", "array": "A", "peer": "P"}
    found = re.search(r"(?i)\b([HDAP])to([HDAP])\b|(\w+)[- ]to[- ](\w+)", signature.text)
    if found is None:
        return {}
    ends = [end for end in found.groups() if end]
    return {"flags": {"direction": "to".join(words.get(e.lower(), e.upper()) for e in ends)}}


_FLASH2 = _rules(
    (
        ("flash_attention flash2 attention", "flash_fwd_kernel|flash_fwd_splitkv_kernel"),
        ("flash_attention flash2 attention_combine", "flash_fwd_splitkv_combine_kernel"),
        (
            "flash_attention flash2 attention_prepare",
            "flash_bwd_(?:dot_do_o|clear_dkvaccum)_kernel",
        ),
        ("flash_attention flash2 attention_convert", "flash_bwd_convert_(?:dq|dkv)_kernel"),
        ("flash_attention flash2 attention_backward", r"flash_bwd_\w*kernel"),
    ),
    attention.read_flash2,
    around=("(?:^|::)(?:", ")$"),
)

_CHIP = "|".join(ARCHITECTURES)
_FLASH4_BACK = r"flash_attn\w*cute\w*(?:bwd|Backward)|FlashAttentionBackwardSm"
_LIBRARIES = _rules(
    (
        # matrix products of cuBLAS, named after the chip or the generator
        ("cublas nvjet auxiliary", r"^nvjet_imma_gemm_\w*(set_device_ptrs|_ker$)"),
        ("cublas nvjet gemm", r"^nvjet_", cublas.read_nvjet),
        ("cudnn xmma convolution", r"^sm\d+_xmma_(?:fprop|dgrad|wgrad)", cublas.read_xmma),
        ("cublas xmma gemm", r"^sm\d+_xmma_(?:\w+_)?gemm(?:_|$)", cublas.read_xmma),
        ("cublas xmma blas3", r"^sm\d+_xmma_\w+", cublas.read_xmma),
        ("cublas xmma split_k_reduce", r"^xmma\w*::gemm::split_k_kernel", cublas.read_cta_tile),
        ("cublas xmma gemm", r"^xmma\w*::gemm::kernel$", cublas.read_cta_tile),
        ("cublas xmma blas3", r"^xmma\w*::gemm::kernel_\w+", cublas.read_cta_tile),
        (
            "cudnn native_conv convolution",
            rf"^(?:{_CHIP})_(\w+_)?[a-z]{{1,2}}\d*cudnn",
            cublas.read_native,
        ),
        ("cublas native gemm", rf"^(?:{_CHIP})_(\w+_)?{NATIVE_OP}(_|$)", cublas.read_native),
        ("cublas native gemm", rf"^{NATIVE_OP}_\d+x\d+", cublas.read_native),
        # attention
        ("flash_attention flash3 attention", r"FlashAttnFwd(?!Combine)", attention.read_flash3),
        ("flash_attention flash3 attention_backward", "FlashAttnBwd(?!P)", attention.read_flash3),
        ("flash_attention flash3 attention_combine", "FlashAttnFwdCombine"),
        ("flash_attention flash3 attention_prepare", r"^flash::(FlashAttn|prepare_\w+)"),
        *(
            (f"flash_attention flash4 {role}", pattern, attention.read_flash4)
            for role, pattern in (
                ("attention_combine", "AttentionForwardCombine"),
                ("attention_prepare", "AttentionBackwardPreprocess"),
                ("attention_convert", "AttentionBackwardPostprocess"),
                ("attention_backward", _FLASH4_BACK),
                ("attention", r"flash_attn\w*cute|FlashAttentionForwardSm"),
            )
        ),
        ("flash_attention flash1 attention", "^(fmha_fwd_loop|fmha::fmha_fwd)"),
        ("flash_attention flash1 attention_backward", "^(fmha_bwd_dq_dk_dv_loop|fmha::fmha_bwd)"),
        ("mem_efficient mem_efficient attention", "^fmha_cutlassF", attention.read_efficient),
        (
            "mem_efficient mem_efficient attention_backward",
            "^fmha_cutlassB",
            attention.read_efficient,
        ),
        ("mem_efficient mem_efficient attention", "^PyTorchMemEffAttention::Attention"),
        (
            "cudnn cudnn_sdpa attention_backward",
            r"^cudnn_\w*(sdpa|mha|attention)\w*bprop",
            attention.read_cudnn,
        ),
        ("cudnn cudnn_sdpa attention", r"^cudnn_\w*(sdpa|mha|attention)", attention.read_cudnn),
        # CUTLASS
        ("cutlass cutlass3 gemm", r"^cutlass[3-9]x_sm\d+", cutlass.read_cutlass3),
        ("cutlass cutlass2 gemm", r"^cutlass_\d+_\w*gemm", cutlass.read_cutlass2),
        (
            "cutlass cutlass2 blas3",
            r"^cutlass_\d+_\w+(trmm|syrk|herk|symm|hemm)",
            cutlass.read_cutlass2,
        ),
        ("cutlass cutlass2 gemm", r"^cutlass_(simt|tensorop|wmma)_\w*gemm"),
        ("cutlass cutlass2 convolution", r"^cutlass_\w*(fprop|dgrad|wgrad)"),
        ("cutlass cutlass2 gemm", r"^cutlass_\d+_\w+"),
        ("cutlass cutlass3 gemm", "^cutlass::gemm::kernel::GemmUniversal$", cutlass.read_template3),
        ("cutlass cutlass2 convolution", "^cutlass::conv::", cutlass.read_template2),
        ("cutlass cutlass2 split_k_reduce", "^cutlass::reduction::kernel::ReduceSplitK"),
        ("cutlass cutlass2 gemm", r"^cutlass\w*::gemm::", cutlass.read_template2),
        ("cutlass cutlass gemm", "^cutlass::(Kernel2?|device_kernel)$"),
        ("cutlass cutlass other", "^cutlass::"),
        # the rest of cuDNN
        ("cudnn cudnn_conv convolution", r"^(cudnn|cask_cudnn)\w*(::\w+)*::\w*(conv|winograd)"),
        ("cudnn cudnn_conv convolution", "^(implicit_convolve|conv2d_grouped|dgrad|wgrad|fft2d)"),
        ("cudnn cudnn_norm norm", r"^cudnn(::\w+)*::\w*(bn_|norm)"),
        ("cudnn cudnn_copy copy", r"^cudnn(::\w+)*::\w*(nchw|nhwc|copy|transpose)"),
        ("cudnn cudnn_generated other", "^cudnn_generated_"),
        ("cudnn cudnn other", r"^(cudnn|cask_?\w*cudnn)|__5x_cudnn$"),
        # Triton: torch.compile's kernels, hand-written ones, and our own
        *(
            (f"triton inductor {role}", f"^triton_{pattern}", read_inductor)
            for role, pattern in (
                ("attention", r"(tem|flex)\w*(attention|flex)"),
                ("gemm", r"(tem\w*mm|mm|bmm|addmm)"),
                ("convolution", r"tem\w*conv"),
                ("template", "tem"),
                ("reduction", "(red|per|spl|mix)_"),
                ("pad", "poi_fused_(constant_pad_nd|pad)"),
                ("cat", r"poi_fused_cat(_\d+)?$"),
                ("copy", r"poi_fused_(_to_copy|clone|copy)(_\d+)?$"),
                ("elementwise", "(poi|for|unk)_"),
                ("other", "[a-z0-9_]+$"),
            )
        ),
        ("triton triton other", r"^[a-z_]\w*_0d?c?e?1d?c?e?(?:\d+d?c?e?)*$", read_specialised),
        ("triton probe copy", r"^gacprof_\w*copy\w*$"),
        ("triton probe gemm", r"^gacprof_\w*gemm\w*$"),
        ("triton probe reduction", r"^gacprof_\w*sum\w*$"),
    )
)

_OF_ATEN = r"\bat::|at_cuda_detail|2at6native|\bc10d?::|\bsoftmax_warp_(?:for|back)ward\b"
"""What only PyTorch's names hold; PersistentSoftmax.cuh has kernels in no namespace of its own."""
_ATEN_ROLES = (
    ("pad", r"constant_pad|reflection_pad|replication_pad|circular_pad"),
    ("fill", r"FillFunctor|fill_kernel"),
    ("cat", r"CatArrayBatchedCopy|cat_batched"),
    ("split_k_reduce", r"splitKreduce"),
    ("gemm", r"tinygemm|int4mm|weight_int8pack|marlin|grouped_mm|_scaled_mm"),
    ("softmax", r"[sS]oft[mM]ax"),
    ("norm", r"layer_norm|LayerNorm|RowwiseMoments|GammaBeta|batch_norm|rms_?norm|group_norm"),
    ("copy", r"direct_copy_kernel|(?<!\w)copy_kernel|float16_copy|float8_copy"),
    ("copy", r"transpose|Transpose|tile_copy|conj_kernel"),
    ("embedding", r"embedding|Embedding"),
    ("convolution", r"conv_depthwise|conv\d?d|vol2col|im2col|col2im"),
    ("random", r"distribution_|dropout|philox|curand|bernoulli"),
    ("sort", r"[rR]adix|[sS]ort|[tT]opK|kthvalue|Median"),
    ("scan", r"[sS]can|cumsum|cumprod"),
    ("index", r"index|gather|scatter|put_kernel|masked|Index"),
    ("reduction", r"reduce_kernel|ReduceOp|Reduce|lpnorm|norm_cleanup|argmax|argmin"),
    ("foreach", r"multi_tensor_apply"),
    ("triangular", r"triu_tril"),
    ("elementwise", r"elementwise|Pointwise|pointwise|loops"),
    ("other", r""),
)
_ATEN = _rules(
    ((f"aten aten {role}", pattern) for role, pattern in _ATEN_ROLES),
    read_aten,
    around=(rf"(?s)^(?=.*(?:{_OF_ATEN})).*(?:", ")"),
    on_text=True,
)

_BLAS1 = "scal|axpy|copy|swap|asum|nrm2|iamax|iamin|rotm?g?(?:_real|_complex)?"
_BLAS2 = r"tr[sm]v|t[bp][sm]v|sy[mr]v?|sp[mr]v?|he[mr]v?|hp[mr]v?|g[eb][rm]v?|sb\w*mv|sphp"
_BLAS3 = r"trsm|trmm2?|syrk|syrkx|herk|symm|hemm|syherk|syhemm|geam|dgmm|trtri|trinv"
_LU = "getr[fis]|getri|geqr|gels|laswp|matinv|potrf|lu_|geqrSolve"
_CUBLAS = _rules(
    (
        (
            "cublas splitk split_k_reduce",
            r"(?:batch\w*_)?splitK_?reduce_kernel",
            cublas.read_reduce,
        ),
        ("cublas epilogue epilogue", r"epilogue::impl::globalKernel|cutlass_unfused_epilogue"),
        (
            "cublas gemv gemv",
            r"gemv2?[TN]?(?:SP|NSP)?_kernel|gemvNSP|gemv_|batchGemv|gemv\w*kernel",
        ),
        ("cublas gemv gemv", r"gemvx::\w*kernel"),
        (
            "cublas small_gemm gemm",
            r"gemmSN_|gemmk1_|gemm_kernel\dx\d|batch_gemm_kernel|gemmSmallN",
        ),
        ("cublas small_gemm gemm", r"\w*[sdczh]gemm\w*(?:largek|1x1|_core)", cublas.read_letter),
        ("cublas gemm gemm", r"magma_(?:\w*gemm|bdmm)|openai_\w*gemm", cublas.read_letter),
        ("cublas gemm gemm", r"fermiPlus\w*gemm|[shdczi]gemm\w*_kernel", cublas.read_letter),
        ("cublas gemm gemm", r"(?:gc|[shdczi])gemm_\w*\d+x\d+", cublas.read_letter),
        ("cublas gemm gemm", r"cublasLt_fused_imma_\w*gemm|\w*imma_\w*gemm"),
        ("cublas dot dot", r"(?:block_)?dot_kernel|dotc?u?_kernel|cublasDot"),
        ("cublas dot dot_reduce", r"reduce_1Block_kernel|reduce_kernel_1Block"),
        ("cublas blas1 blas1", rf"(?:block_)?(?:{_BLAS1})_(?:64addr_)?kernel"),
        ("cublas blas3 blas3", rf"(?:\w+_)?[sdcz]?(?:{_BLAS3})(?:_|\d|$)"),
        (
            "cublas blas2 blas2",
            rf"(?:cuds_)?[sdcz]?(?:{_BLAS2})\w*(?:kernel|diag|exec|init|stage|ws_|direct)",
        ),
        ("cublas blas2 blas2", r"\w*(?:symv|trsv|syhemv|gpmv|ger_kernel|her2?_kernel)"),
        ("cublas lapack lapack", rf"(?:\w+_)?(?:{_LU})"),
        ("cublas transform copy", r"region_transform_ABC|transpose_readWrite|transpose_kernel"),
        ("cublas transform copy", r"kernel_conjugate|trttp_kernel|tpttr_kernel|kernel_minv"),
        ("cublas emulation auxiliary", r"prolog_|inverse_scaling|construct_c?bf16|cest_|esc_|sft_"),
        ("cublas emulation auxiliary", r"(?:re|de)duce_nmoduli|set_mantissa|max_exponent"),
        ("cublas emulation auxiliary", r"get_minmax|max_scale|inf_patching::"),
        ("cublas emulation auxiliary", r"cublasLt_(?:imma_emu|bf16x9)"),
        ("cublas internal auxiliary", r"cublas(?:Lt)?::internal|nopHardware|nopCluster"),
        ("cublas internal auxiliary", r"cask_?\w*cublas|internal::|init_device_workspace"),
        ("cublas internal auxiliary", r"xmma(?:__5x_cublas)?::|\w*P(?:tr|ointer)Array"),
    ),
    cublas.read_typed,
    around=(r"(?:^|::)(?:", ")"),
)

_OTHERS = (
    *_rules(
        (
            ("cublas internal auxiliary", r"\bcublas|[cC]ublas\w*Params|_cublas\b"),
            ("cuda memcpy memcpy", r"(?i)^\[?(CUDA )?memcpy|^cu(da)?Memcpy", read_copy),
            ("cuda memset memset", r"(?i)^\[?(CUDA )?memset|^cu(da)?Memset"),
        ),
        on_text=True,
    ),
    *_rules(
        (
            ("nccl nccl collective", r"^nccl\w*(Kernel|Dev)"),
            ("cub cub sort", r"cub::\w*.*(Radix|Sort|Histogram)"),
            ("cub cub scan", r"cub::\w*.*(Scan|Select|Unique|Partition)"),
            ("cub cub reduction", r"cub::\w*.*Reduce"),
            ("cub cub other", r"\bcub::|cub_\w+::"),
            ("thrust thrust other", r"\bthrust::"),
            ("cusparse cusparse other", "^cusparse::"),
            ("cusolver cusolver other", "^cusolver"),
        )
    ),
)

RULES = (*_FLASH2, *_LIBRARIES, *_ATEN, *_CUBLAS, *_OTHERS)
