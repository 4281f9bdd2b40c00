"""One request a verb: the command line, the Python function and the request have the same fields,
the same defaults, and refuse the same values."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

import gacprof
from gacprof.api import make_suite
from gacprof.cli.app import _verb
from gacprof.cliffmap.request import ExplainRequest
from gacprof.core.errors import GacprofError
from gacprof.core.request import Option, Request, given_texts, option, options_of, spelling
from gacprof.diagnosing.request import DiagnoseRequest
from gacprof.evaluation.request import BenchRequest, EvaluateRequest, VerifyRequest
from gacprof.extras.compress.request import CompressRequest
from gacprof.extras.serve.request import ExportRequest
from gacprof.linting import LintRequest
from gacprof.planning import Constraints, ParetoRequest, PlanRequest
from gacprof.report.making import ReportRequest
from gacprof.resizing.request import ImportRequest, RealignRequest
from gacprof.sweeping.request import FleetRequest, SweepRequest

VERBS = {
    "plan": PlanRequest, "pareto": ParetoRequest, "compress": CompressRequest,
    "diagnose": DiagnoseRequest, "verify": VerifyRequest, "bench": BenchRequest,
    "evaluate": EvaluateRequest, "sweep": SweepRequest, "sweep_fleet": FleetRequest,
    "export": ExportRequest, "realign": RealignRequest, "import_gguf": ImportRequest,
    "write_report": ReportRequest, "lint": LintRequest, "explain_dim": ExplainRequest,
}  # fmt: skip
ON_THE_COMMAND_LINE = {
    "evaluate": "eval",
    "sweep_fleet": "fleet sweep",
    "import_gguf": "import-gguf",
    "write_report": "report",
    "explain_dim": "explain",
}
"""Verbs of another name there."""


def flattened(request: type[Request]) -> list[tuple[str, Option, object]]:
    found = []
    for name, known in options_of(request):
        if known.nested is None:
            found.append((name, known, request.__dataclass_fields__[name].default))
        else:
            found += flattened(known.nested)
    return found


def parameters(verb: str) -> list[Any]:
    first, *rest = ON_THE_COMMAND_LINE.get(verb, verb).split()
    command = _verb(first)
    for name in rest:
        command = command.commands[name]
    return command.params


@pytest.mark.parametrize("verb", VERBS)
def test_every_field_is_an_option_and_a_parameter_with_the_same_default(verb):
    request = VERBS[verb]
    offered = {parameter.name: parameter for parameter in parameters(verb)}
    for name, known, default in flattened(request):
        if (verb, name) == ("lint", "source"):
            continue  # the command line takes several
        parameter = offered[name]
        if not known.argument:
            assert spelling(name, known) in parameter.opts
        if isinstance(default, bool | int | float | str) and not known.many:
            assert parameter.default == default
    in_python = inspect.signature(getattr(gacprof, verb)).parameters
    assert list(in_python) == list(inspect.signature(request).parameters)
    for each in fields(request):
        assert each.name in in_python


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_has_a_help_text(verb):
    assert [p.name for p in parameters(verb) if not getattr(p, "help", "")] == []


@pytest.mark.parametrize("verb", VERBS)
def test_numbers_out_of_range_are_one_line_on_the_command_line_and_an_error_of_ours(verb, run):
    known_of = {name: (known, default) for name, known, default in flattened(VERBS[verb])}
    needed = {
        name: {float: 0.5, int: 1}.get(known.read, (*known.choices, "x")[0])
        for name, (known, default) in known_of.items() if default is MISSING
    }  # fmt: skip
    words = [
        str(value) if known_of[name][0].argument else f"{spelling(name, known_of[name][0])}={value}"
        for name, value in needed.items()
    ]
    for name, (known, _) in known_of.items():
        below = known.least if known.least is not None else known.above
        if below is None or known.reads_text:
            continue
        bad = -7 if known.read is int else below - 7.5
        with pytest.raises(GacprofError, match=f"^{name}.* is -7.*: it must be "):
            getattr(gacprof, verb)(**needed | {name: bad})
        result = run(
            *ON_THE_COMMAND_LINE.get(verb, verb).split(), *words, f"{spelling(name, known)}={bad}"
        )
        assert result.code == 2 and result.err.count("\n") == 1 and "it must be" in result.err


def test_a_text_of_the_command_line_and_a_value_of_python_make_the_same_request():
    texts = {
        "checkpoint": "m", "cliff_map": "map", "tokens": "1:0.9,1024:0.1", "memory": "6GB",
        "pinned": ["*:rank=128"], "uniform": ["role"], "dtype": "fp16",
    }  # fmt: skip
    assert PlanRequest(**given_texts(PlanRequest, texts)) == PlanRequest(
        "m", "map", tokens={1: 0.9, 1024: 0.1}, memory=6 * 10**9, dtype="float16",
        constraints=Constraints(pinned={"*:rank": 128}, uniform=["role"]),
    )  # fmt: skip


class Asked(Request):
    """A request of each kind of field."""

    name: str = option(default="a", choices=("a", "b"))
    count: int = option(default=1, read=int, least=1, most=9)
    share: float | None = option(default=None, read=float, above=0)
    on: bool = option(default=False)
    dtype: str | None = option(default=None)


@pytest.mark.parametrize(
    "given",
    [{"name": "c"}, {"count": 0}, {"count": 1.5}, {"count": True}, {"count": "3"}, {"count": 10},
     {"share": 0}, {"share": float("nan")}, {"share": float("inf")}, {"share": "0.5"}, {"on": 1},
     {"on": "yes"}, {"name": []}],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(given):
    (name,) = given
    with pytest.raises(GacprofError, match=f"^{name}.* is "):
        Asked(**given)


def test_numbers_of_numpy_and_dtypes_of_torch_are_taken():
    import numpy as np
    import torch

    asked = Asked(count=np.int64(3), share=torch.tensor(0.5), dtype=torch.bfloat16)
    assert asked == Asked(count=3, share=0.5, dtype="bfloat16")


def test_python_is_told_of_arguments_that_a_verb_does_not_take():
    with pytest.raises(GacprofError, match="pareto: got an unexpected keyword argument 'budget'"):
        gacprof.pareto("m", "map", budget=0.5)
    assert "--budget-params" in gacprof.plan.__doc__


def test_a_curve_of_ones_own_is_the_same_suite_in_python_and_on_the_command_line():
    texts = {
        "operator": "linear", "axis": "K", "ranks": "8:24", "fixed": ["M=16,N=16"],
        "flags": ["bias=true"],
    }  # fmt: skip
    asked = SweepRequest(
        operator="linear", axis="K", ranks=(8, 24), fixed={"M": 16, "N": 16}, flags={"bias": True}
    )
    assert SweepRequest(**given_texts(SweepRequest, texts)) == asked
    (plan,) = make_suite(asked).curves("cpu")
    assert plan.points[8].dim == {"M": 16, "N": 16, "K": 8}
    with pytest.raises(GacprofError, match="tokens go with a model"):
        make_suite(replace(asked, tokens=[1]))
