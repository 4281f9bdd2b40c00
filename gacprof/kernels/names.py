"""Kernel names → identities, and the kernels of one call → groups.

A name is taken apart (:mod:`signature`), the first row of the table that claims it says what family
it is of, and that family's reader fills in the rest. A name that no row claims is ``unknown`` and
kept. Nothing here raises: names come from libraries not yet written.

A row is provider, family, role and a pattern. The first pattern that is found in a name decides,
so the specific stand before the general. A new source of kernels is its rows here and, if its
names say more than the family, a reader (:mod:`word_names`, :mod:`template_names`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from gacprof.core.files import Record
from gacprof.kernels import template_names, word_names
from gacprof.kernels.kernel import ARCHITECTURES, Fields, Kernel
from gacprof.kernels.signature import LONGEST, Signature, take_apart

Reader = Callable[[Signature], Fields]


class Family(NamedTuple):
    """Names in whose path, or whole text, the pattern is found, and who reads them."""

    provider: str
    family: str
    role: str
    pattern: re.Pattern[str]
    on_text: bool
    read: Reader

    def claims(self, signature: Signature) -> bool:
        searched = signature.text if self.on_text else signature.path
        return self.pattern.search(searched) is not None


def _read_xmma(signature: Signature) -> Fields:
    """There are both words and C++ templates of this family."""
    templated = "::" in signature.path
    return (template_names.read_cta_tile if templated else word_names.read_xmma)(signature)


_READERS: Mapping[str, Reader] = {
    "nvjet": word_names.read_nvjet,
    "xmma": _read_xmma,
    "native": word_names.read_named,
    "native_conv": word_names.read_named,
    "named": word_names.read_named,
    "cutlass2": template_names.read_cutlass2,
    "cutlass3": template_names.read_cutlass3,
    "flash2": template_names.read_flash2,
    "flash3": template_names.read_flash3,
    "flash4": word_names.read_flash4,
    "mem_efficient": word_names.read_efficient,
    "cudnn_sdpa": word_names.read_cudnn,
    "inductor": word_names.read_triton,
    "triton": word_names.read_triton,
    "aten": template_names.read_aten,
    "splitk": template_names.read_reduce,
    "letter": word_names.read_letter,
    "cublas": template_names.read_typed,
    "memcpy": template_names.read_memcpy,
}
"""By family; a row may name another reader with ``family/reader``."""


def _table(rows: str, form: str = "…", on_text: bool = False, read: str = "") -> list[Family]:
    """The rows of a table; each pattern takes the place of … in ``form``."""
    made = []
    for row in filter(None, map(str.strip, rows.splitlines())):
        provider, named, role, pattern = row.split(maxsplit=3)
        family, _, reader = named.partition("/")
        reads = _READERS.get(reader or read or family, lambda signature: {})
        compiled = re.compile(form.replace("…", pattern))
        made.append(Family(provider, family, role, compiled, on_text, reads))
    return made


_CHIP = "|".join(ARCHITECTURES)
_GEMMS = rf"""
cublas   nvjet/none        auxiliary       ^nvjet_imma_gemm_\w*(set_device_ptrs|_ker$)
cublas   nvjet             gemm            ^nvjet_
cudnn    xmma              convolution     ^sm\d+_xmma_(?:fprop|dgrad|wgrad)
cublas   xmma              gemm            ^sm\d+_xmma_(?:\w+_)?gemm(?:_|$)
cublas   xmma              blas3           ^sm\d+_xmma_\w+
cublas   xmma              split_k_reduce  ^xmma\w*::gemm::split_k_kernel
cublas   xmma              gemm            ^xmma\w*::gemm::kernel$
cublas   xmma              blas3           ^xmma\w*::gemm::kernel_\w+
cudnn    native_conv       convolution     ^(?:{_CHIP})_(\w+_)?[a-z]{{1,2}}\d*cudnn
cublas   native            gemm            ^(?:{_CHIP})_(\w+_)?{word_names.NATIVE_OP}(_|$)
cublas   native            gemm            ^{word_names.NATIVE_OP}_\d+x\d+
"""
_ATTENTION = r"""
flash_attention flash2     attention            (?:^|::)flash_fwd_(?:splitkv_)?kernel$
flash_attention flash2     attention_combine    (?:^|::)flash_fwd_splitkv_combine_kernel$
flash_attention flash2     attention_prepare    (?:^|::)flash_bwd_dot_do_o_kernel$
flash_attention flash2     attention_prepare    (?:^|::)flash_bwd_clear_dkvaccum_kernel$
flash_attention flash2     attention_convert    (?:^|::)flash_bwd_convert_(?:dq|dkv)_kernel$
flash_attention flash2     attention_backward   (?:^|::)flash_bwd_\w*kernel$
flash_attention flash3     attention            FlashAttnFwd(?!Combine)
flash_attention flash3     attention_backward   FlashAttnBwd(?!P)
flash_attention flash3     attention_combine    FlashAttnFwdCombine
flash_attention flash3     attention_prepare    ^flash::(FlashAttn|prepare_\w+)
flash_attention flash4     attention_combine    AttentionForwardCombine
flash_attention flash4     attention_prepare    AttentionBackwardPreprocess
flash_attention flash4     attention_convert    AttentionBackwardPostprocess
flash_attention flash4     attention_backward   flash_attn\w*cute\w*(?:bwd|Backward)
flash_attention flash4     attention_backward   FlashAttentionBackwardSm
flash_attention flash4     attention            flash_attn\w*cute|FlashAttentionForwardSm
flash_attention flash1     attention            ^(fmha_fwd_loop|fmha::fmha_fwd)
flash_attention flash1     attention_backward   ^(fmha_bwd_dq_dk_dv_loop|fmha::fmha_bwd)
mem_efficient mem_efficient attention           ^fmha_cutlassF
mem_efficient mem_efficient attention_backward  ^fmha_cutlassB
mem_efficient mem_efficient/none attention      ^PyTorchMemEffAttention::Attention
cudnn    cudnn_sdpa        attention_backward   ^cudnn_\w*(sdpa|mha|attention)\w*bprop
cudnn    cudnn_sdpa        attention            ^cudnn_\w*(sdpa|mha|attention)
"""
_OTHER_LIBRARIES = r"""
cutlass  cutlass3/named    convolution     (?:^|::)cutlass[3-9]x_sm\d+_\w*(fprop|dgrad|wgrad)
cutlass  cutlass3/named    gemm            (?:^|::)cutlass[3-9]x_sm\d+
cutlass  cutlass2/named    gemm            (?:^|::)cutlass_\d+_\w*gemm
cutlass  cutlass2/named    blas3           (?:^|::)cutlass_\d+_\w+(trmm|syrk|herk|symm|hemm)
cutlass  cutlass2/named    gemm            (?:^|::)cutlass_(simt|tensorop|wmma)_\w*gemm
cutlass  cutlass2/none     convolution     (?:^|::)cutlass_\w*(fprop|dgrad|wgrad)
cutlass  cutlass2/none     gemm            (?:^|::)cutlass_\d+_\w+
cutlass  cutlass3          gemm            ^cutlass::gemm::kernel::GemmUniversal$|::cutlass_3x_gemm$
cutlass  cutlass2          convolution     ^cutlass::conv::
cutlass  cutlass2/none     split_k_reduce  ^cutlass::reduction::kernel::ReduceSplitK
cutlass  cutlass2          gemm            ^cutlass\w*::gemm::
cutlass  cutlass           gemm            ^cutlass::(Kernel2?|device_kernel)$
cutlass  cutlass           other           ^cutlass::
cudnn    cudnn_conv        convolution     ^(cudnn|cask_cudnn)\w*(::\w+)*::\w*(conv|winograd)
cudnn    cudnn_conv        convolution     ^(implicit_convolve|conv2d_grouped|dgrad|wgrad|fft2d)
cudnn    cudnn_norm        norm            ^cudnn(::\w+)*::\w*(bn_|norm)
cudnn    cudnn_copy        copy            ^cudnn(::\w+)*::\w*(nchw|nhwc|copy|transpose)
cudnn    cudnn_generated   other           ^cudnn_generated_
cudnn    cudnn             other           ^(cudnn|cask_?\w*cudnn)|__5x_cudnn$
triton   inductor          attention       ^triton_(tem|flex)\w*(attention|flex)
triton   inductor          gemm            ^triton_(tem\w*mm|mm|bmm|addmm)
triton   inductor          convolution     ^triton_tem\w*conv
triton   inductor          template        ^triton_tem
triton   inductor          reduction       ^triton_(red|per|spl|mix)_
triton   inductor          pad             ^triton_poi_fused_(constant_pad_nd|pad)
triton   inductor          cat             ^triton_poi_fused_cat(_\d+)?$
triton   inductor          copy            ^triton_poi_fused_(_to_copy|clone|copy)(_\d+)?$
triton   inductor          elementwise     ^triton_(poi|for|unk)_
triton   inductor          other           ^triton_[a-z0-9_]+$
triton   triton            other           ^[a-z_]\w*_0d?c?e?1d?c?e?(?:\d+d?c?e?)*$
triton   probe             copy            ^gacprof_\w*copy\w*$
triton   probe             gemm            ^gacprof_\w*gemm\w*$
triton   probe             reduction       ^gacprof_\w*sum\w*$
"""
_OF_ATEN = (
    r"(?s)^(?=.*(?:\bat::|at_cuda_detail|2at6native|\bc10d?::|\bsoftmax_warp_(?:for|back)ward\b))"
)
"""What only PyTorch's names hold; PersistentSoftmax.cuh has kernels in no namespace of its own."""
_ATEN = r"""
aten aten pad             constant_pad|reflection_pad|replication_pad|circular_pad
aten aten fill            FillFunctor|fill_kernel
aten aten cat             CatArrayBatchedCopy|cat_batched
aten aten split_k_reduce  splitKreduce
aten aten gemm            tinygemm|int4mm|weight_int8pack|marlin|grouped_mm|_scaled_mm
aten aten softmax         [sS]oft[mM]ax
aten aten norm            layer_norm|LayerNorm|RowwiseMoments|GammaBeta
aten aten norm            batch_norm|rms_?norm|group_norm
aten aten copy            direct_copy_kernel|(?<!\w)copy_kernel|float16_copy|float8_copy
aten aten copy            transpose|Transpose|tile_copy|conj_kernel
aten aten embedding       embedding|Embedding
aten aten convolution     conv_depthwise|conv\d?d|vol2col|im2col|col2im
aten aten random          distribution_|dropout|philox|curand|bernoulli
aten aten sort            [rR]adix|[sS]ort|[tT]opK|kthvalue|Median
aten aten scan            [sS]can|cumsum|cumprod
aten aten index           index|gather|scatter|put_kernel|masked|Index
aten aten reduction       reduce_kernel|ReduceOp|Reduce|lpnorm|norm_cleanup|argmax|argmin
aten aten foreach         multi_tensor_apply
aten aten triangular      triu_tril
aten aten elementwise     elementwise|Pointwise|pointwise|loops
aten aten other           .?
"""
_BLAS1 = "scal|axpy|copy|swap|asum|nrm2|iamax|iamin|rotm?g?(?:_real|_complex)?"
_BLAS2 = r"tr[sm]v|t[bp][sm]v|sy[mr]v?|sp[mr]v?|he[mr]v?|hp[mr]v?|g[eb][rm]v?|sb\w*mv|sphp"
_BLAS3 = r"trsm|trmm2?|syrk|syrkx|herk|symm|hemm|syherk|syhemm|geam|dgmm|trtri|trinv"
_PHASE = "kernel|diag|exec|init|stage|ws_|direct"
_CUBLAS = rf"""
cublas splitk/splitk     split_k_reduce  (?:batch\w*_)?splitK_?reduce_kernel
cublas epilogue          epilogue        epilogue::impl::globalKernel|cutlass_unfused_epilogue
cublas gemv              gemv            gemv2?[TN]?(?:SP|NSP)?_kernel|gemvNSP|gemv_|batchGemv
cublas gemv              gemv            gemv\w*kernel|gemvx::\w*kernel
cublas small_gemm        gemm            gemmSN_|gemmk1_|gemm_kernel\dx\d|batch_gemm_kernel
cublas small_gemm        gemm            gemmSmallN
cublas small_gemm/letter gemm            \w*[sdczh]gemm\w*(?:largek|1x1|_core)
cublas gemm/letter       gemm            magma_(?:\w*gemm|bdmm)|openai_\w*gemm
cublas gemm/letter       gemm            fermiPlus\w*gemm|[shdczi]gemm\w*_kernel
cublas gemm/letter       gemm            (?:gc|[shdczi])gemm_\w*\d+x\d+
cublas gemm              gemm            cublasLt_fused_imma_\w*gemm|\w*imma_\w*gemm
cublas dot               dot             (?:block_)?dot_kernel|dotc?u?_kernel|cublasDot
cublas dot               dot_reduce      reduce_1Block_kernel|reduce_kernel_1Block
cublas blas1             blas1           (?:block_)?(?:{_BLAS1})_(?:64addr_)?kernel
cublas blas3             blas3           (?:\w+_)?[sdcz]?(?:{_BLAS3})(?:_|\d|$)
cublas blas2             blas2           (?:cuds_)?[sdcz]?(?:{_BLAS2})\w*(?:{_PHASE})
cublas blas2             blas2           \w*(?:symv|trsv|syhemv|gpmv|ger_kernel|her2?_kernel)
cublas lapack            lapack          (?:\w+_)?(?:getr[fis]|geqr|gels|laswp|matinv|potrf|lu_)
cublas transform         copy            region_transform_ABC|transpose_readWrite|transpose_kernel
cublas transform         copy            kernel_conjugate|trttp_kernel|tpttr_kernel|kernel_minv
cublas emulation         auxiliary       prolog_|inverse_scaling|construct_c?bf16|cest_|esc_|sft_
cublas emulation         auxiliary       (?:re|de)duce_nmoduli|set_mantissa|max_exponent
cublas emulation         auxiliary       get_minmax|max_scale|inf_patching::
cublas emulation         auxiliary       cublasLt_(?:imma_emu|bf16x9)
cublas internal          auxiliary       cublas(?:Lt)?::internal|nopHardware|nopCluster
cublas internal          auxiliary       cask_?\w*cublas|internal::|init_device_workspace
cublas internal          auxiliary       xmma(?:__5x_cublas)?::|\w*P(?:tr|ointer)Array
"""
_ANYWHERE = r"""
cublas internal auxiliary   \bcublas|[cC]ublas\w*Params|_cublas\b
cuda   memcpy   memcpy      (?i)^\[?(CUDA )?memcpy|^cu(da)?Memcpy
cuda   memset   memset      (?i)^\[?(CUDA )?memset|^cu(da)?Memset
"""
_REST = r"""
nccl     nccl     collective  ^nccl\w*(Kernel|Dev)
cub      cub      sort        cub::\w*.*(Radix|Sort|Histogram)
cub      cub      scan        cub::\w*.*(Scan|Select|Unique|Partition)
cub      cub      reduction   cub::\w*.*Reduce
cub      cub      other       \bcub::|cub_\w+::
thrust   thrust   other       \bthrust::
cusparse cusparse other       ^cusparse::
cusolver cusolver other       ^cusolver
"""

FAMILIES = (
    *_table(_GEMMS),
    *_table(_ATTENTION),
    *_table(_OTHER_LIBRARIES),
    *_table(_ATEN, _OF_ATEN + "(?=.*(?:…))", on_text=True),
    *_table(_CUBLAS, "(?:^|::)(?:…)", read="cublas"),
    *_table(_ANYWHERE, on_text=True),
    *_table(_REST),
)

COMPLETES = {
    "split_k_reduce": ("gemm", "gemv"),
    "epilogue": ("gemm", "gemv"),
    "dot_reduce": ("dot",),
    "attention_combine": ("attention",),
    "attention_convert": ("attention_backward",),
}
"""Roles that complete the work of a kernel before them → the roles that they complete."""
PAD_ROLES = ("fill", "copy", "pad")
"""Roles that ``constant_pad_nd`` is made of: it fills, then copies (ATen PadNd.cpp)."""


@lru_cache(maxsize=16384)
def parse(name: str) -> Kernel:
    """What ``name`` says. Unknown names give ``provider="unknown"``; never raises.

    No more is read of a name longer than any kernel's, or with a number of a thousand digits.
    """
    if len(name) > LONGEST or re.search(r"\d{1000}", name):
        return Kernel(name)
    signature = take_apart(name)
    found = next((family for family in FAMILIES if family.claims(signature)), None)
    if found is None:
        return Kernel(name)
    fields = found.read(signature)
    flags = {key: value for key, value in fields.pop("flags", {}).items() if value is not None}
    return Kernel(
        name,
        provider=found.provider,
        family=found.family,
        role=found.role,
        flags=tuple(sorted(flags.items())),
        **fields,
    )


@dataclass(frozen=True)
class Group(Record):
    """One piece of work: its main kernel, what prepared its operands, what completed it."""

    main: Kernel
    before: tuple[Kernel, ...] = ()
    after: tuple[Kernel, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (*self.before, self.main, *self.after)


def attach(names: Iterable[str]) -> list[Group]:
    """Kernels of one call, in launch order, as groups.

    A split-K reduction joins the GEMM before it, which is then marked ``split_k``; likewise
    combining kernels of attention. Fills and copies right before an attention kernel are its
    padding if there is a fill or pad among them (a copy alone may be anything).
    """
    groups: list[Group] = []
    for kernel in map(parse, names):
        last = groups[-1] if groups else None
        if last and last.main.role in COMPLETES.get(kernel.role, ()):
            split = kernel.role in ("split_k_reduce", "attention_combine")
            main = replace(last.main, split_k=True) if split else last.main
            groups[-1] = replace(last, main=main, after=(*last.after, kernel))
        elif kernel.role.startswith("attention") and kernel.known:
            before = _padding(groups)
            del groups[len(groups) - len(before) :]
            groups.append(Group(kernel, before))
        else:
            groups.append(Group(kernel))
    return groups


def _padding(groups: list[Group]) -> tuple[Kernel, ...]:
    run: list[Kernel] = []
    for group in reversed(groups):
        if group.main.role not in PAD_ROLES or group.after:
            break
        run.insert(0, group.main)
    return tuple(run) if any(kernel.role != "copy" for kernel in run) else ()
