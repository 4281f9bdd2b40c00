"""Findings as words: what the page says, kept apart from how it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gacprof.core import formatting

if TYPE_CHECKING:
    from gacprof.report.page import Contents


def headline(contents: Contents) -> list[str]:
    """The findings in plain sentences, the most important first. No gain is said as such."""
    sentences = []
    if contents.bench:
        sentences += _measured(contents.bench)
    if contents.verification:
        sentences.append(_function(contents.verification))
    if contents.diagnosis:
        sentences.append(_dims(contents.diagnosis))
    return sentences


def _measured(bench: Mapping[str, Any]) -> list[str]:
    first, sentences = bench["models"][0], []
    for model in bench["models"][1:]:
        of_model = [t for t in bench["timings"] if t["model"] == model]
        parts = [f"{t['workload']} tokens {_change(t)}" for t in of_model]
        gained = [t for t in of_model if t["verdict"] == "faster"]
        lost = [t for t in of_model if t["verdict"] == "slower"]
        if all(t["verdict"] == "identical" for t in of_model):
            sentences.append(f"{model} is identical to {first}, byte for byte.")
            continue
        verdict = (
            "is faster somewhere and slower elsewhere"
            if gained and lost
            else "is faster"
            if gained
            else "is slower"
            if lost
            else "gained nothing that can be shown"
        )
        sentences.append(f"Measured here, {model} {verdict} against {first}: {'; '.join(parts)}.")
    return sentences


def _change(timing: Mapping[str, Any]) -> str:
    low, middle, high = timing["ratio"]
    if timing["verdict"] in ("no difference shown", "undecided"):
        return f"{timing['verdict']} ({_signed(low - 1)} to {_signed(high - 1)})"
    return f"{_signed(middle - 1)} ({_signed(low - 1)} to {_signed(high - 1)})"


def _function(check: Mapping[str, Any]) -> str:
    if check["max_rel_error"] is None:
        return "The two models could not be compared: their outputs are not finite."
    same = "computes the same function" if check["passed"] else "does not compute the same function"
    return (
        f"The realigned model {same} within tolerance: largest error "
        f"{error(check['max_rel_error'])} of the largest logit "
        f"(tolerance {check['tolerance']:.0e}), "
        f"the same most likely token at {percent(check['argmax_agreement'])} of positions."
    )


def _dims(diagnosis: Mapping[str, Any]) -> str:
    totals = diagnosis["totals"]
    undecided = f", {totals['undecided']} undecided" if totals["undecided"] else ""
    if diagnosis.get("basis"):
        return (
            f"{totals['misaligned']} of {totals['weights']} weights are misaligned "
            f"{diagnosis['basis']}; what that costs is not known."
        )
    return (
        f"{totals['misaligned']} of {totals['weights']} weights are misaligned by measurement "
        f"by a tolerance of {between(diagnosis['tolerances'])}{undecided} "
        f"({totals['not_divisible_by_8']} by the rule d % 8); padding should recover "
        f"{microseconds(totals['recoverable_us'])} of {microseconds(totals['predicted_us'])} "
        "in matrix products."
    )


def microseconds(value: float | None) -> str:
    return formatting.microseconds(value) or "unknown"


def percent(value: float | None) -> str:
    return formatting.percent(value) or "–"


def _signed(value: float | None) -> str:
    return (formatting.percent(value, signed=True) or "–").replace("-", "−")


def between(ends: Sequence[float]) -> str:
    """``2.0 % to 3.7 %``; one of them where both read the same."""
    if not ends:
        return "unknown"
    first, last = percent(ends[0]), percent(ends[-1])
    return first if first == last else f"{first} to {last}"


def bound(judged: Mapping[str, Any]) -> str:
    """The upper bound of a dim's penalty: none where it was not judged."""
    if judged.get("verdict") in (None, "unknown"):
        return "–"
    high = judged.get("penalty_high")
    return "open" if high is None else percent(high)


def error(value: float | None) -> str:
    """An error in powers of ten; 0 is none at all."""
    return "not finite" if value is None else "0" if value == 0 else f"{value:.2e}"


FILTERS: dict[str, Callable[..., str]] = {
    "us": microseconds,
    "percent": percent,
    "signed": _signed,
    "count": lambda value: "–" if value is None else f"{value:,}",
    "between": between,
    "bound": bound,
    "error": error,
}
