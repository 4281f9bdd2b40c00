"""Small Nsight Compute reports, written by hand for ``ncu_report`` to read.

A report is ``NVR\\0`` and blocks: each the length of a header, the header, and the payload whose
size is the header's field 5. A payload is messages, each behind its length. The numbers of the
protobuf fields are those found in a report of Nsight Compute 2022.3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

Value = int | float | str | bytes | list["Field"]
Field = tuple[int, Value]

OPCODES = "sass__inst_executed_per_opcode_with_modifier_all"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def message(*fields: Field) -> bytes:
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            if isinstance(value, list):
                value = message(*value)
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def number_of(value: float | str) -> Field:
    return (1, value) if isinstance(value, str) else (3, float(value))


def launch(
    name: str,
    metrics: Sequence[str],
    values: Mapping[str, float | str],
    opcodes: Mapping[str, int],
    ranges: Sequence[str],
) -> bytes:
    """One kernel launch. ``metrics`` are all names of the report, in its own order."""
    fields: list[Field] = [(1, 1), (2, 1), (3, 1), (4, 1)]  # process, context, program, kernel
    fields += [(5, name), (6, name), (7, f"{name}(int, double *)")]
    fields += [(8, 3), *((n, [(1, x), (2, x), (3, x)]) for n, x in ((9, 0), (10, 1), (11, 1)))]
    fields += [(15, [(1, 1)])]  # source
    for metric, value in values.items():
        fields.append((13, [(1, metrics.index(metric)), (2, [number_of(value)])]))
    executed: list[Field] = [(3, [(1, [(1, op)]), (2, [(5, n)])]) for op, n in opcodes.items()]
    total = number_of(sum(opcodes.values()))
    fields.append((13, [(1, metrics.index(OPCODES)), (2, [total]), *executed]))
    pushed: list[Field] = [(3, [(1, text), (3, 0)]) for text in ranges]
    domain: list[Field] = [(1, 0), (2, "<default domain>")]
    fields.append((21, [(1, domain), (2, [(1, 1), (2, [(1, 0), *pushed])])]))
    return message(*fields)


def block(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<I", len(header)) + header + payload


def write_daxpy(path: Path) -> Path:
    """Three kernels, with the counters that tests ask for and the names of NVIDIA's NVTX sample."""
    device = {
        "device__attribute_display_name": "NVIDIA GeForce RTX 3070",
        "device__attribute_compute_capability_major": 8,
        "device__attribute_compute_capability_minor": 6,
        "launch__grid_size": 16384,
        "launch__waves_per_multiprocessor": 59.36231884057971,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 0.0,
    }
    duration = "gpu__time_duration.sum"
    metrics = [*device, duration, OPCODES]
    kernels = (
        ("init_data", 84480, {"STG.E.64": 262144}),
        ("daxpy", 249216, {"LDG.E.64": 262144, "STG.E.64": 131072}),
        ("check_results", 90000, {"LDG.E.64": 131072}),
    )
    launches = [
        launch(f"{name}_kernel", metrics, device | {duration: ns}, opcodes, ("run_test", name))
        for name, ns, opcodes in kernels
    ]
    payload = b"".join(struct.pack("<I", len(one)) + one for one in launches)
    names = message(*((1, name) for name in metrics))
    header = message((1, 0), (2, len(launches)), (4, names), (5, len(payload)))
    path.write_bytes(b"NVR\x00" + block(message((1, 7))) + block(header, payload))
    return path
