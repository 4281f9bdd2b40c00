"""Names of kernels as torch and its libraries spell them."""

NATIVE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
ALIGN1 = "cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::Half>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<c10::Half>, std::array<char*, 1ul>)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() "
    "const::{lambda(c10::Half)#1}, std::array<char*, 2ul>, 4>(int)"
)


def flash(template: int, even_k: bool) -> str:
    """FlashAttention-2's forward kernel, as torch 2.9.1 names it."""
    return (
        f"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{template}, 128, 64, 4, "
        "false, false, cutlass::half_t, Flash_kernel_traits<0>>, false, false, false, false, "
        f"true, {str(even_k).lower()}, false, false>(pytorch_flash::Flash_fwd_params)"
    )
