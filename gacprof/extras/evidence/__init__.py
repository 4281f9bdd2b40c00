"""What Nsight Compute and a CPU's libraries say of a kernel beside its time."""
