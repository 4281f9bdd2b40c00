"""Devices that are measured: a CPU, a CUDA GPU, each by choice in a worker process."""
