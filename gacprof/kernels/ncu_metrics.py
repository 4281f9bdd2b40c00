"""The hardware counters we ask Nsight Compute for, and on which architecture each exists.

Presence by architecture is what ``libnvperf_host`` of ncu-report 2025.3 to 2026.3 lists.
"""

from __future__ import annotations

from dataclasses import dataclass

AMPERE = ("sm80", "sm86", "sm89")
HOPPER = ("sm90",)
BLACKWELL = ("sm100", "sm103", "sm120", "sm121")
ALL = AMPERE + HOPPER + BLACKWELL


@dataclass(frozen=True)
class Metric:
    """``key`` is our name, with its unit; ``name`` Nsight Compute's."""

    key: str
    name: str
    meaning: str
    on: tuple[str, ...] = ALL


METRICS: tuple[Metric, ...] = (
    Metric("duration_ns", "gpu__time_duration.sum", "time on the device"),
    Metric(
        "tensor_active_pct",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "share of cycles in which the tensor pipe worked",
    ),
    Metric("tensor_instructions", "sm__inst_executed_pipe_tensor.sum", "instructions of the pipe"),
    Metric(
        "hmma_instructions",
        "sm__inst_executed_pipe_tensor_op_hmma.sum",
        "mma.sync of half precision",
        AMPERE + HOPPER,
    ),
    Metric(
        "gmma_instructions",
        "sm__inst_executed_pipe_tensor_op_gmma.sum",
        "warpgroup MMA",
        HOPPER,
    ),
    Metric(
        "subpipe_hmma_instructions",
        "sm__inst_executed_pipe_tensor_subpipe_hmma.sum",
        "mma.sync of half precision",
        BLACKWELL,
    ),
    Metric("l2_read_sectors", "lts__t_sectors_op_read.sum", "32-byte sectors read from L2"),
    Metric("l2_read_requests", "lts__t_requests_op_read.sum", "requests that asked for them"),
    Metric(
        "l2_throughput_pct",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "L2 work relative to its peak",
    ),
    Metric("dram_read_bytes", "dram__bytes_read.sum", "bytes read from memory"),
    Metric("dram_write_bytes", "dram__bytes_write.sum", "bytes written to memory"),
    Metric(
        "lsu_sectors_per_request",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
        "sectors that one load through the registers needs (blind to TMA and cp.async)",
    ),
    Metric(
        "global_loads", "smsp__sass_inst_executed_op_global_ld.sum", "loads through the registers"
    ),
    Metric("async_copies", "smsp__sass_inst_executed_op_ldgsts.sum", "cp.async copies (LDGSTS)"),
    Metric(
        "tma_instructions",
        "sm__inst_executed_pipe_tma.sum",
        "bulk copies by TMA",
        HOPPER + BLACKWELL,
    ),
    Metric("waves_per_sm", "launch__waves_per_multiprocessor", "blocks per slot for them"),
    Metric("blocks", "launch__grid_size", "blocks launched"),
    Metric("threads_per_block", "launch__block_size", "threads in one"),
    Metric("registers_per_thread", "launch__registers_per_thread", "registers"),
    Metric("shared_bytes_per_block", "launch__shared_mem_per_block", "shared memory"),
    Metric(
        "l2_theoretical_sectors",
        "memory_l2_theoretical_sectors_global",
        "sectors that global accesses ask L2 for",
    ),
    Metric(
        "l2_ideal_sectors",
        "memory_l2_theoretical_sectors_global_ideal",
        "sectors they would ask for if every access were whole",
    ),
)
OPCODES = "sass__inst_executed_per_opcode_with_modifier_all"
"""Executed instructions by opcode with all modifiers: ``LDG.E.128``, ``HGMMA.64x128x16.F32``."""


def requested(arch: str | None = None) -> str:
    """The value of ncu's ``--metrics``: what that architecture has, all for an unknown one.

    Some releases of ncu only warn of a name that a chip lacks, others stop at it.
    """
    wanted = [metric.name for metric in METRICS if arch not in ALL or arch in metric.on]
    return ",".join([*wanted, OPCODES])
