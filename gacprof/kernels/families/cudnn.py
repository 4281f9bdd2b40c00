"""cuDNN's other kernels: convolutions, normalisation, transforms."""

from __future__ import annotations

from gacprof.kernels.families.rule import Rule

RULES = (
    Rule(
        "cudnn_conv", "cudnn", "convolution", r"^(cudnn|cask_cudnn)\w*(::\w+)*::\w*(conv|winograd)"
    ),
    Rule(
        "cudnn_conv",
        "cudnn",
        "convolution",
        r"^(implicit_convolve|conv2d_grouped|dgrad|wgrad|fft2d)",
    ),
    Rule("cudnn_norm", "cudnn", "norm", r"^cudnn(::\w+)*::\w*(bn_|norm)"),
    Rule("cudnn_copy", "cudnn", "copy", r"^cudnn(::\w+)*::\w*(nchw|nhwc|copy|transpose)"),
    Rule("cudnn_generated", "cudnn", "other", r"^cudnn_generated_"),
    Rule("cudnn", "cudnn", "other", r"^(cudnn|cask_?\w*cudnn)|__5x_cudnn$"),
)
