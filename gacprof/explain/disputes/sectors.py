"""The "L2" dispute: sectors, or Triton's own habit?

A's probe is a Triton row sum in fp16. A row starts on a 32-byte sector exactly if its length
is a multiple of 16 elements, and Triton's JIT tells its compiler of divisibility by 16 and by
nothing less: the two coincide, so the figure cannot tell them apart. In fp32 they part: rows
of 8 modulo 16 start on sectors, yet Triton does not know. That the loads narrow is seen by
compiling; whether sectors cost time on top takes a GPU. There the fp16 probe also runs with
Triton's knowledge withheld (``specialise`` false), so that both lengths have narrow loads.
"""

from __future__ import annotations

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.explain.disputes.value import OPEN, SETTLED, UNDECIDED, Dispute, Results
from gacprof.kernels import static

Decision = tuple[str, str, tuple[str, ...]]
ROWS = 1024


def point(k: int, dtype: str, specialise: bool = True) -> Point:
    """A row sum over (1024, K)."""
    flags = {"specialise": specialise}
    return operators.point("row_sum", {"rows": ROWS, "K": k}, dtype, flags)


ALIGNED, HALF_ALIGNED, ODD = point(4096, "float32"), point(4104, "float32"), point(4097, "float32")
AS_COMPILED = point(4097, "float16"), point(4096, "float16")
ALL_NARROW = point(4097, "float16", False), point(4096, "float16", False)


def compiled_loads() -> Decision:
    """Compile the probe for K 4096, 4104 and 4097 as Triton's JIT would."""
    try:
        hints = {k: static.jit_divisibility(k) for k in (4096, 4104, 4097)}
        rows = {
            k: static.table(["row_sum"], ["sm80"], [divisor])[0] for k, divisor in hints.items()
        }
    except MeasurementError as error:
        return OPEN, "Triton is needed to settle it without a GPU", (str(error),)
    widths = {k: row.load_bytes for k, row in rows.items()}
    evidence = tuple(
        f"K {k}: {row.ptx_load}, {row.load_bytes} bytes (Triton {static.version()} knows "
        f"divisibility by {hints[k]})"
        for k, row in rows.items()
    )
    if widths[4104] == widths[4097] != widths[4096]:
        finding = (
            "A's figure cannot show sectors: Triton narrows the loads of such a row sum for every "
            "K that is no multiple of 16, so 4104 is compiled like 4097"
        )
        return SETTLED, finding, evidence
    return UNDECIDED, "with this Triton the loads do not go by multiples of 16", evidence


def sectors_or_loads(results: Results) -> Decision:
    """fp32: 4104 rows start on sectors, 4097 do not, and Triton treats both alike."""
    half, odd = results.ratio(HALF_ALIGNED, ALIGNED), results.ratio(ODD, ALIGNED)
    if half is None or odd is None:
        return UNDECIDED, "the row sums were not all measured", ()
    evidence = (f"fp32, over K 4096: 4104 {half:.2f}, 4097 {odd:.2f}", *_in_fp16(results))
    if odd <= 1 + results.floor:
        return UNDECIDED, "no K is slower than another here", evidence
    if abs(half - odd) <= results.floor * odd:
        finding = "sector-aligned rows are as slow as odd ones: Triton's loads, not sectors (B)"
        return SETTLED, finding, evidence
    if half <= 1 + results.floor:
        finding = "sector-aligned rows run at full speed though Triton does not know: sectors (A)"
        return SETTLED, finding, evidence
    return SETTLED, "both: sector-aligned rows lie between full speed and odd ones", evidence


def _in_fp16(results: Results) -> tuple[str, ...]:
    """What A's own dtype shows: 4097 over 4096 as compiled, and with narrow loads in both."""
    compiled, narrow = results.ratio(*AS_COMPILED), results.ratio(*ALL_NARROW)
    if compiled is None or narrow is None:
        return ()
    return (f"fp16, 4097 over 4096: {compiled:.2f}; with narrow loads in both {narrow:.2f}",)


DISPUTES = (
    Dispute(
        2,
        "L2 sectors: 50 % or 6 %?",
        ("A: misaligned sectors cost about 50 %", "B: 5.8 %, not a cause"),
        "Triton, and a CUDA GPU for what sectors cost",
        (ALIGNED, HALF_ALIGNED, ODD, *AS_COMPILED, *ALL_NARROW),
        sectors_or_loads,
        compiled_loads,
    ),
)
