"""Readers of names that are C++ templates: what each argument stands for, by family."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gacprof.kernels.kernel import (
    ARCHITECTURES,
    ELEMENT_BYTES,
    TMA_BYTES,
    Fields,
    Flag,
    Types,
    data_types,
    first,
    numbers,
)
from gacprof.kernels.signature import Signature, template


def _by_count(newest: str) -> Mapping[int, str]:
    """Number of switches → their names: older versions lack softcap, then alibi too, then local."""
    names = newest.split()
    found = {len(names): newest}
    for lacking in ("softcap", "alibi", "local"):
        names.remove(lacking)
        found[len(names)] = " ".join(names)
    return found


_BACKWARD = _by_count("dropout causal local alibi even_mn even_k softcap")
SWITCHES = {
    "flash_fwd_kernel": _by_count(
        "dropout causal local alibi even_mn even_k softcap return_softmax"
    ),
    "flash_fwd_splitkv_kernel": _by_count(
        "causal local alibi even_mn even_k softcap split append_kv"
    ),
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": _BACKWARD,
    "flash_bwd_dq_dk_dv_loop_kernel": _BACKWARD,
}
"""Kernel → number of its boolean template arguments → their meanings. They grew over time
(flash_fwd_kernel.h of FlashAttention 2.0 to 2.7)."""


def read_flash2(signature: Signature) -> Fields:
    """head_dim's template, tiles and switches are template arguments.

    flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, …, half_t, …>, B1 … B8>
                                             template, rows of q, rows of k, warps
    """
    traits = signature.argument("kernel_traits")
    sizes = [int(a) for a in traits[:4] if re.fullmatch(r"\d+", a)]
    kind = next(iter(data_types(a for a in traits if "_t" in a)), None)
    names = SWITCHES.get(signature.base, {}).get(len(signature.booleans), "").split()
    flags: dict[str, Flag | None] = dict(zip(names, signature.booleans, strict=False))
    flags["warps"] = sizes[3] if len(sizes) == 4 else None
    if signature.base == "flash_fwd_splitkv_combine_kernel" and len(signature.integers) == 2:
        flags["block_m"], flags["log_max_splits"] = signature.integers
        flags.update(zip(["even_k"], signature.booleans, strict=False))
    return {
        "types": Types(kind, kind, kind, "float32", kind) if kind else Types(),
        "template": sizes[0] if sizes else None,
        "tile": (sizes[1], sizes[2]) if len(sizes) > 2 else None,
        "split_k": bool(flags.get("split", False)),
        "flags": flags,
    }


def _sizes(argument: str) -> tuple[int, ...]:
    """``cute::tuple<cute::C<128>, cute::C<256>, cute::C<64> >`` → (128, 256, 64)."""
    found = re.findall(r"\b(?:C|constant)<(?:int, ?)?(\d+)>", argument)
    return tuple(map(int, found)) if "tuple<" in argument else ()


def read_flash3(signature: Signature) -> Fields:
    """``FlashAttnFwdSm90<CollectiveMainloopFwdSm90<stages, cluster, tile, head_dim_v, type, …``"""
    arguments = signature.argument("Mainloop")
    shapes = [shape for shape in map(_sizes, arguments) if len(shape) == 3]
    sizes = [int(a) for a in arguments if re.fullmatch(r"\d+", a)]
    kinds = data_types(a for a in arguments if a.endswith("_t") or a == "float")
    return {
        "arch": first(r"(Sm\d+)$", signature.path, str.lower),
        "types": Types(kinds[0], kinds[0], kinds[0], kinds[-1]) if kinds else Types(),
        "stages": sizes[0] if sizes else None,
        "cluster": shapes[0] if shapes else None,
        "tile": shapes[1][:2] if len(shapes) > 1 else None,
        "template": shapes[1][2] if len(shapes) > 1 else None,
    }


def read_cutlass2(signature: Signature) -> Fields:
    """``cutlass::gemm::kernel::Gemm<…MmaMultistage<GemmShape<128, 128, 32>, …``"""
    body = ",".join(signature.arguments)
    shapes = [tuple(map(int, s)) for s in re.findall(r"GemmShape<(\d+), ?(\d+), ?(\d+)>", body)]
    kinds = data_types(re.findall(r"cutlass::(\w+_t)\b", body))
    return {
        "arch": first(r"arch::(Sm\d+)", body, str.lower),
        "types": Types(kinds[0], kinds[0]) if kinds else Types(),
        "tile": shapes[0] if shapes else None,
        "mma": shapes[2] if len(shapes) > 2 else None,
        "alignment": first(r"(?:AlignedArray|Array)<cutlass::\w+_t, ?(\d+)", body, int),
    }


def read_cutlass3(signature: Signature) -> Fields:
    """``GemmUniversal<problem, CollectiveMma<Mainloop…<stages, …>, tile, A, stride of A, B, …``

    The template holds no alignment: it is what the copy of the operands asks for, TMA or a
    ``cp.async`` of that many bits. ``cutlass_3x_gemm<A, D, epilogue, tile, cluster, …>`` is how
    vLLM wraps it all.
    """
    wrapped = signature.path.endswith("cutlass_3x_gemm")
    arguments = list(signature.arguments) if wrapped else signature.argument("CollectiveMma")
    mainloop, body = "".join(arguments[:1]), ",".join(arguments)
    operands, tile, cluster = arguments[2:5:2], arguments[1:2], template(mainloop)[1]
    if wrapped:
        operands, tile, cluster = arguments[:1], arguments[3:4], arguments[4:5]
    tiles, clusters = ([s for s in map(_sizes, x) if len(s) == 3] for x in (tile, cluster))
    kinds = [kind for text in operands for kind in data_types(re.findall(r"[\w ]+", text))[:1]]
    return {
        "arch": first(r"Mainloop(S[mM]\d+)", mainloop, str.lower),
        "types": Types(kinds[0], kinds[-1], kinds[0]) if kinds else Types(),
        "cluster": clusters[0] if clusters else None,
        "tile": tiles[0] if tiles else None,
        "stages": first(r"MainloopS[mM]\d+\w*<\s*(\d+)", mainloop, int),
        "mma": first(r"\b(?:SM\d+_|MMA_)(\d+x\d+x\d+)_", body, numbers),
        "alignment": _copied(body, kinds[0]) if kinds else None,
    }


def _copied(body: str, kind: str) -> int | None:
    """Elements of one copy to shared memory; None where the type has no whole bytes."""
    size = ELEMENT_BYTES.get(kind)
    bits = re.search(r"CP_ASYNC\w*<(?:\w+::)*uint(\d+)_t|AssumedAlignment<(\d+)", body)
    copied = int(bits[1] or bits[2]) // 8 if bits else TMA_BYTES if "Tma" in body else None
    return max(1, copied // size) if copied and size else None


def read_cta_tile(signature: Signature) -> Fields:
    """``xmma::gemm::kernel<Kernel_traits<…, Cta_tile<Ampere, 64, 64, 8, …``"""
    tile = re.search(r"Cta_tile<xmma\w*::(\w+), (\d+), (\d+), (\d+)", signature.text)
    if tile is None:
        return {}
    return {"arch": ARCHITECTURES.get(tile[1].lower()), "tile": tuple(map(int, tile.groups()[1:]))}


def read_typed(signature: Signature) -> Fields:
    """``gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, …>``

    Element types in the order of the arguments: A, B (or x), D (or y), accumulator; then launch
    sizes that no document explains.
    """
    words = [a for a in signature.arguments if a not in ("int", "long", "unsigned int")]
    kinds = data_types(word for word in words if "<" not in word)
    if len(kinds) == 1 and not re.search("…|[.]{3}", signature.text):
        kinds *= 4
    a, b, out, accumulate = (*kinds, *[None] * 4)[:4]
    return {
        "types": Types(a, b, a, accumulate, out),
        "layout": first(r"^gemv2?([TN])_|^gemmSN_([TN]{2})_", signature.base, str.lower),
        "flags": {"sizes": ",".join(map(str, signature.integers)) or None},
    }


def read_reduce(signature: Signature) -> Fields:
    """``splitKreduce_kernel<32, 16, int, partial, in, accumulator, out, …``"""
    a, b, accumulate, out = (*data_types(signature.arguments[3:]), *[None] * 4)[:4]
    return {"types": Types(a, b, None, accumulate, out), "split_k": True}


def read_aten(signature: Signature) -> Fields:
    """``vectorized_elementwise_kernel<4, FillFunctor<Half>, …>``: a fill of 4 elements a thread."""
    functor = next((a for a in signature.arguments if not re.fullmatch(r"-?\d+", a)), "")
    element = r"c10::\w+|(?:(?<=[<(])|(?<=, ))(?:float|double|long|bool)\b"
    kinds = data_types(re.findall(element, functor))
    vector = signature.integers[:1] if "vectorized" in signature.base else []
    return {
        "types": Types(kinds[0], out=kinds[0]) if kinds else Types(),
        "flags": {"vector": vector[0] if vector else None},
    }


def read_memcpy(signature: Signature) -> Fields:
    """``Memcpy HtoD (Pageable -> Device)`` and ``[CUDA memcpy Host-to-Device]``."""
    words = {"host": "H", "device": "D", "array": "A", "peer": "P"}
    found = re.search(r"(?i)\b([HDAP])to([HDAP])\b|(\w+)[- ]to[- ](\w+)", signature.text)
    ends = [end for end in found.groups() if end] if found else []
    direction = "to".join(words.get(end.lower(), end.upper()) for end in ends)
    return {"flags": {"direction": direction or None}}
