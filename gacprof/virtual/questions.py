"""The questions that an installed PyTorch is asked on a virtual GPU, from within its process.

Every question goes over one size (a head_dim, a row's length, an axis of a product) at all whole
numbers of its range; what else it depends on is its key. Tensors are dense, contiguous and need no
gradient. Nothing is computed: an answer is PyTorch's choice, its kernels or its refusal.
"""

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from importlib import resources
from pathlib import Path

import torch
from torch.nn import functional

from gacprof.kernels.dispatch import SDPA_SHAPES
from gacprof.virtual.build import tool_output
from gacprof.virtual.run import Launch, clear, launches

Answer = str | dict
Section = dict
"""``by``: names of a key; ``range``: first and last size; ``asked``: what all questions share;
``answers``: the different ones; ``rows``: ``[*key, [number of an answer by size]]``."""

BACKENDS = {-1: "none", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""``torch.nn.attention.SDPBackend``."""
SDPA_SIZES = range(1, 513)
MASKS = (("none", False), ("none", True), ("float", False), ("bool", False))
"""(mask, causal); PyTorch takes no mask beside causal."""
DTYPES = ("bfloat16", "float16", "float32")
HEAD_COUNTS = {False: (32, 32), True: (32, 8)}
"""(of queries, of keys), by whether queries are grouped."""
ATTENTION_KEY = ["dtype", "mask", "causal", "gqa", "shape"]
SHAPES = {
    "prefill": (1, 1024, 1024),
    "prefill 4096": (1, 4096, 4096),
    "chunk": (1, 64, 4096),
    "decode": (1, 1, 1024),
    "decode 8192": (1, 1, 8192),
    "decode batch 64": (64, 1, 1024),
}
"""(batch, queries, keys) of the questions that launch attention, with 32 heads."""
FLASH_KERNEL = re.compile(
    r"(flash_fwd_(?:splitkv_)?kernel)\w*?Flash_fwd_kernel_traitsILi(\d+)ELi(\d+)ELi(\d+)ELi(\d+)E"
)
"""Name, head_dim, tile and warps in the symbol of a FlashAttention-2 kernel."""
ROW_SIZES = range(1, 8193)
ROW_TOKENS = (1, 16, 4096)
SORT_TOKENS = 16  # sorting copies its rows, which a virtual GPU does: more of them take minutes
VOCABULARY = 1000
STREAM_SIZES = range(1, 257)
PRODUCT_SIZES = range(1, 513)
PRODUCT = {"M": 64, "N": 256, "K": 256}
GROUPS = 4


def section(
    by: list[str],
    sizes: range,
    keys: Iterable[tuple],
    answer: Callable[[int, tuple], Answer],
    shared_facts: dict | None = None,
) -> Section:
    """Ask for every key at every size."""
    numbers: dict[str, int] = {}
    rows = []
    for key in keys:
        texts = [json.dumps(answer(size, key)) for size in sizes]
        rows.append([*key, [numbers.setdefault(text, len(numbers)) for text in texts]])
    answers = [json.loads(text) for text in numbers]
    bounds = (sizes[0], sizes[-1])
    return {"by": by, "range": bounds, "asked": shared_facts, "answers": answers, "rows": rows}


def device_tensor(*shape: int, dtype: str = "bfloat16") -> torch.Tensor:
    """Return a tensor on the virtual GPU, without a value."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")


def attention_inputs(
    head_dim: int, dtype: str, mask: str, shape: Sequence[int], heads: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return queries, keys (values are the same tensor) and the mask of an attention call."""
    batch, q_len, kv_len = shape
    query = device_tensor(batch, heads[0], q_len, head_dim, dtype=dtype)
    key = device_tensor(batch, heads[1], kv_len, head_dim, dtype=dtype)
    if mask == "none":
        return query, key, None
    mask_dtype = "bool" if mask == "bool" else dtype
    return query, key, device_tensor(batch, 1, q_len, kv_len, dtype=mask_dtype)


def refusal(error: Exception) -> str:
    """Return the first line of PyTorch's message without the shapes it was asked about."""
    line = str(error).splitlines()[0]
    line = re.sub(r",? but got.*| ?\(?\d+x\d+\)?|;.*", "", line)
    return f"refused: {line.strip()}"[:160]


def launched(call: Callable[[], object]) -> list[Launch]:
    clear()
    call()
    return launches()


def kernels_of(call: Callable[[], object]) -> str:
    """Return the kernels of a call, each once, in order; "cublas" for its unknown ones."""
    names = [launch.kernel for launch in launched(call)]
    return " + ".join(dict.fromkeys("cublas" if x.startswith("cublas ") else x for x in names))


def attention_keys(shapes: Iterable[str]) -> list[tuple]:
    """Return the keys of attention: type, mask, causal, grouped queries and lengths."""
    combinations = itertools.product(DTYPES, MASKS, HEAD_COUNTS, shapes)
    return [(dtype, *mask, gqa, shape) for dtype, mask, gqa, shape in combinations]


def choice(head_dim: int, key: tuple, shape: Sequence[int], heads: Sequence[int]) -> str:
    """Return the backend that scaled_dot_product_attention takes."""
    dtype, mask, causal, gqa, _ = key
    query, keys, bias = attention_inputs(head_dim, dtype, mask, shape, heads)
    number = torch._fused_sdp_choice(query, keys, keys, bias, 0.0, causal, enable_gqa=gqa)
    return BACKENDS[number]


def sdpa() -> Section:
    """Ask SDPA's choice of a backend for every head_dim."""

    def answer(head_dim: int, key: tuple) -> str:
        *_, gqa, shape = key
        return choice(head_dim, key, (1, *SDPA_SHAPES[shape]), HEAD_COUNTS[gqa])

    keys = attention_keys(SDPA_SHAPES)
    return section(ATTENTION_KEY, SDPA_SIZES, keys, answer, {"shapes": SDPA_SHAPES})


def only(backend: str) -> None:
    """Let SDPA take one backend alone."""
    torch.backends.cuda.enable_flash_sdp(backend == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(backend == "efficient")
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def attend(head_dim: int, key: tuple) -> None:
    dtype, mask, causal, gqa, shape = key
    query, keys, bias = attention_inputs(head_dim, dtype, mask, SHAPES[shape], HEAD_COUNTS[gqa])
    attend_to = functional.scaled_dot_product_attention
    attend_to(query, keys, keys, bias, is_causal=causal, enable_gqa=gqa)


def attention_answer(noted: list[Launch]) -> Answer:
    """Return the kernel of a call: memory-efficient attention's, whose name holds the tile, or
    FlashAttention-2's template (a head_dim), tile, warps and grid."""
    for launch in noted:
        if "fmha" in launch.kernel:
            return launch.kernel
        match = FLASH_KERNEL.search(launch.kernel)
        if match is None:
            continue
        name, *numbers = match.groups()
        template, *tile, warps = map(int, numbers)
        return {
            "kernel": name,
            "template": template,
            "tile": tile,
            "warps": warps,
            # parts of the keys, summed up afterwards
            "splits": launch.grid[1] if "splitkv" in name else 1,
            "grid": list(launch.grid),
            "shared_bytes": launch.shared_bytes,
        }
    return "refused"


def attention(backend: str, last: int) -> Section:
    """Ask a backend for every head_dim up to ``last``."""

    def answer(head_dim: int, key: tuple) -> Answer:
        try:
            return attention_answer(launched(partial(attend, head_dim, key)))
        except torch.OutOfMemoryError:  # a fault of the questions, and a RuntimeError too
            raise
        except RuntimeError:
            return "refused"

    only(backend)
    keys = attention_keys(SHAPES)
    if backend == "flash":
        # Else refused at every size: PyTorch's FlashAttention-2 takes halves and no mask.
        keys = [key for key in keys if key[0] != "float32" and key[1] == "none"]
    heads, kv_heads = HEAD_COUNTS[True]
    shared_facts = {"shapes": SHAPES, "heads": heads, "kv_heads": kv_heads}
    return section(ATTENTION_KEY, range(1, last + 1), keys, answer, shared_facts)


@lru_cache(maxsize=1)
def row_calls(dtype: str, tokens: int) -> dict[str, Callable[[int], object]]:
    """Return operators on ``tokens`` rows by name, as functions of a row's length."""
    rows = device_tensor(tokens * ROW_SIZES[-1], dtype=dtype)
    table = device_tensor(VOCABULARY * ROW_SIZES[-1], dtype=dtype)
    index = torch.zeros(tokens, dtype=torch.long, device="cuda")

    def matrix(size: int) -> torch.Tensor:
        return rows[: tokens * size].view(tokens, size)

    return {
        "softmax": lambda size: torch.softmax(matrix(size), -1),
        "layer_norm": lambda size: functional.layer_norm(
            matrix(size), (size,), table[:size], table[:size]
        ),
        "rms_norm": lambda size: functional.rms_norm(matrix(size), (size,), table[:size]),
        "cat": lambda size: torch.cat((matrix(size), matrix(size)), -1),
        "embedding": lambda size: functional.embedding(
            index, table[: VOCABULARY * size].view(VOCABULARY, size)
        ),
        "sort": lambda size: torch.sort(matrix(size), -1),
    }


def rows() -> Section:
    """Ask which kernels serve a row's length; their names in order of launch."""
    torch.cuda.empty_cache()  # of attention's large blocks
    keys = []
    for dtype, tokens in itertools.product(DTYPES, ROW_TOKENS):
        for operator in row_calls(dtype, tokens):
            if operator != "sort" or tokens <= SORT_TOKENS:
                keys.append((operator, dtype, tokens))

    def answer(size: int, key: tuple) -> str:
        operator, dtype, tokens = key
        return kernels_of(partial(row_calls(dtype, tokens)[operator], size))

    return section(["operator", "dtype", "tokens"], ROW_SIZES, keys, answer)


def stream() -> Section:
    """Ask how Triton compiles :mod:`gacprof.operators.stream_triton` for a row's length."""
    import triton

    from gacprof.operators.stream_triton import BLOCK, KERNELS

    programs = {name: triton.jit(kernel)[(1,)] for name, kernel in KERNELS.items()}

    def answer(size: int, key: tuple) -> Answer:
        operator, dtype = key
        rows = device_tensor(1, size, dtype=dtype)  # the length is the stride between rows too
        result = torch.float32 if operator == "row_sum" else rows.dtype
        target = torch.empty_like(rows, dtype=result)
        kernel = programs[operator](rows, target, size, BLOCK=BLOCK)
        return compiled(kernel.asm["ptx"], kernel.asm["cubin"])

    keys = itertools.product(KERNELS, DTYPES)
    shared_facts = {"triton": triton.__version__}
    return section(["operator", "dtype"], STREAM_SIZES, keys, answer, shared_facts)


@cache
def compiled(ptx: str, cubin: bytes) -> dict[str, int]:
    """Return the bytes of a kernel's widest load, and its registers by Triton's own cuobjdump."""
    loads = re.findall(r"ld\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = resources.files("triton") / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = tool_output([str(tool), "--dump-resource-usage", file.name])
    registers = re.search(r"REG:(\d+)", usage)
    assert registers, usage
    widest = max(int(elements or 1) * int(bits) // 8 for elements, bits in loads)
    return {"load_bytes": widest, "registers": int(registers[1])}


def scaled_mm(shape: dict[str, int], rowwise: bool) -> object:
    """Multiply float8 matrices with one scale, or with one a row."""
    a = device_tensor(shape["M"], shape["K"], dtype="float8_e4m3fn")
    b = device_tensor(shape["N"], shape["K"], dtype="float8_e4m3fn").t()
    shapes = ((shape["M"], 1), (1, shape["N"])) if rowwise else ((), ())
    a_scale, b_scale = (device_tensor(*scale_shape, dtype="float32") for scale_shape in shapes)
    return torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=torch.bfloat16)


def int_mm(shape: dict[str, int]) -> object:
    a = device_tensor(shape["M"], shape["K"], dtype="int8")
    return torch._int_mm(a, device_tensor(shape["N"], shape["K"], dtype="int8").t())


def grouped_mm(shape: dict[str, int]) -> object:
    """Multiply rows of ``M`` a group by each group's own matrix, as a mixture of experts does."""
    a = device_tensor(GROUPS * shape["M"], shape["K"])
    b = device_tensor(GROUPS, shape["N"], shape["K"]).transpose(1, 2)
    ends = torch.arange(1, GROUPS + 1, dtype=torch.int32) * shape["M"]
    return torch._grouped_mm(a, b, offs=ends.cuda(), out_dtype=torch.bfloat16)


PRODUCTS: dict[str, Callable[[dict[str, int]], object]] = {
    "_scaled_mm tensorwise": partial(scaled_mm, rowwise=False),
    "_scaled_mm rowwise": partial(scaled_mm, rowwise=True),
    "_int_mm": int_mm,
    "_grouped_mm": grouped_mm,
}


def products() -> Section:
    """Ask which kernels special products take by the size of each axis, or why it is refused."""

    def answer(size: int, key: tuple) -> Answer:
        operator, axis = key
        try:
            return kernels_of(partial(PRODUCTS[operator], PRODUCT | {axis: size}))
        except (RuntimeError, ValueError) as error:
            return refusal(error)

    keys = itertools.product(PRODUCTS, PRODUCT)
    shared_facts = {"other axes": PRODUCT, "groups": GROUPS}
    return section(["operator", "axis"], PRODUCT_SIZES, keys, answer, shared_facts)


def main() -> None:
    """Write the answers, and the versions they depend on, to the command line's last file."""
    answered = {
        "versions": {
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "archs": " ".join(torch.cuda.get_arch_list()),
        },
        "sdpa": sdpa(),
        "fa2": attention("flash", 256),
        "efficient": attention("efficient", SDPA_SIZES[-1]),
        "rows": rows(),
        "products": products(),
        "stream": stream(),
    }
    Path(sys.argv[-1]).write_text(json.dumps(answered), encoding="utf-8")
