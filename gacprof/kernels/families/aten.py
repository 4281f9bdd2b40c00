"""PyTorch's own kernels. The role follows from the functor that the kernel was made with.

``vectorized_elementwise_kernel<4, FillFunctor<Half>, …>`` is a fill of 4 elements a thread;
``constant_pad_nd`` is such a fill followed by a ``direct_copy_kernel_cuda``.
"""

from __future__ import annotations

import re

from gacprof.kernels.families.rule import Fields, Rule
from gacprof.kernels.kernel import Types
from gacprof.kernels.signature import Signature
from gacprof.kernels.vocabulary import data_type

_ATEN = r"\bat::|at_cuda_detail|2at6native|\bc10d?::|\bsoftmax_warp_(?:for|back)ward\b"
"""What only PyTorch's names hold; PersistentSoftmax.cuh has kernels in no namespace of its own."""
_ELEMENT = re.compile(r"c10::\w+|(?:(?<=[<(])|(?<=, ))(?:float|double|long|bool)\b")


def read(signature: Signature) -> Fields:
    flags: dict[str, str | int | bool] = {}
    path = signature.path.rsplit("::", 1)[-1]
    if "vectorized" in path and signature.integers:
        flags["vector"] = signature.integers[0]
    functor = next((a for a in signature.arguments if not re.fullmatch(r"-?\d+", a)), "")
    kinds = [kind for word in _ELEMENT.findall(functor) if (kind := data_type(word))]
    return {
        "types": Types(kinds[0], out=kinds[0]) if kinds else Types(),
        "flags": tuple(flags.items()),
    }


def _role(role: str, pattern: str) -> Rule:
    return Rule("aten", "aten", role, rf"(?s)^(?=.*(?:{_ATEN})).*(?:{pattern})", read, on="text")


RULES = (
    _role("pad", r"constant_pad|reflection_pad|replication_pad|circular_pad"),
    _role("fill", r"FillFunctor|fill_kernel"),
    _role("cat", r"CatArrayBatchedCopy|cat_batched"),
    _role("split_k_reduce", r"splitKreduce"),
    _role("gemm", r"tinygemm|int4mm|weight_int8pack|marlin|grouped_mm|_scaled_mm"),
    _role("softmax", r"[sS]oft[mM]ax"),
    _role("norm", r"layer_norm|LayerNorm|RowwiseMoments|GammaBeta|batch_norm|rms_?norm|group_norm"),
    _role("copy", r"direct_copy_kernel|(?<!\w)copy_kernel|float16_copy|float8_copy"),
    _role("copy", r"transpose|Transpose|tile_copy|conj_kernel"),
    _role("embedding", r"embedding|Embedding"),
    _role("convolution", r"conv_depthwise|conv\d?d|vol2col|im2col|col2im"),
    _role("random", r"distribution_|dropout|philox|curand|bernoulli"),
    _role("sort", r"[rR]adix|[sS]ort|[tT]opK|kthvalue|Median"),
    _role("scan", r"[sS]can|cumsum|cumprod"),
    _role("index", r"index|gather|scatter|put_kernel|masked|Index"),
    _role("reduction", r"reduce_kernel|ReduceOp|Reduce|lpnorm|norm_cleanup|argmax|argmin"),
    _role("foreach", r"multi_tensor_apply"),
    _role("triangular", r"triu_tril"),
    _role("elementwise", r"elementwise|Pointwise|pointwise|loops"),
    _role("other", r""),
)
