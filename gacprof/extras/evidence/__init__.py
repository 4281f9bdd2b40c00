"""What tools say of a kernel beside its time: Nsight Compute, a compiler without a GPU."""
