"""A GPU that is not there: the dispatchers of an installed PyTorch, asked on a machine without one.

Stand-ins for the CUDA driver, runtime, profiler interface and cuBLAS answer as a chosen GPU and
note every kernel launch; nothing runs. CUDA libraries that check the driver's integrity (cuBLAS,
cuDNN, NCCL) do not start on it: that check is neither answered nor imitated.
"""
