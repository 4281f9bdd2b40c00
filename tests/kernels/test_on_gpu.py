"""What only a GPU can show: that the names of what runs there are understood."""

from __future__ import annotations

import pytest

from gacprof.devices.kineto import trace
from gacprof.kernels import Kernel, attach, fa2, parse

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="runs kernels on a CUDA device"),
]


def kernels_of(call) -> list[str]:  # type: ignore[no-untyped-def]
    """Names of the kernels of one call, in launch order, after a warm-up."""
    call()
    torch.cuda.synchronize()
    return [event.name for event in trace(call)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("m", [1, 2048])
def test_every_kernel_of_a_linear_is_known(dtype: str, m: int) -> None:
    for k in (104, 106, 107, 112, 128, 4096):
        x = torch.randn(m, k, device="cuda", dtype=getattr(torch, dtype))
        w = torch.randn(512, k, device="cuda", dtype=getattr(torch, dtype))
        names = kernels_of(lambda x=x, w=w: torch.nn.functional.linear(x, w))
        assert names
        assert [name for name in names if not parse(name).known] == []
        assert any(parse(name).role in ("gemm", "gemv") for name in names)


def served(head_dim: int) -> tuple[Kernel, tuple[Kernel, ...]]:
    """What FlashAttention runs; left to itself, PyTorch asks cuDNN first on sm90 and sm100."""
    q = torch.randn(1, 8, 512, head_dim, device="cuda", dtype=torch.float16)

    def attend() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            scaled_dot_product_attention(q, q, q)

    names = kernels_of(attend)
    assert [name for name in names if not parse(name).known] == []
    group = next(g for g in attach(names) if g.main.role == "attention")
    return group.main, group.before


def test_an_unaligned_head_dim_is_padded_before_flash() -> None:
    main, before = served(107)
    assert main.family == "flash2"
    assert main.even_k is False
    assert sum(kernel.role in ("fill", "pad") for kernel in before) == 3


def test_the_template_that_runs_is_the_one_that_the_library_promises() -> None:
    inventory = fa2.read()
    for head_dim in (65, 107, 129, 200):
        main, _ = served(head_dim)
        assert main.template == inventory.template_for(head_dim)
