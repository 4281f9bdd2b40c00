"""One request a verb: the command line, the Python function and the request have the same fields,
the same defaults, and refuse the same values."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

import gacprof
from gacprof.api.sweeps import make_suite
from gacprof.cli.app import app
from gacprof.core.errors import GacprofError
from gacprof.core.request import Option, Request, given_texts, option, options_of, spelling
from gacprof.planning import Constraints, PlanRequest
from gacprof.sweeping.request import SweepRequest

FUNCTIONS = {
    "bench": "bench", "compress": "compress", "demo": "demo", "diagnose": "diagnose",
    "doctor": "doctor", "eval": "evaluate", "explain": "explain", "export": "export",
    "gpus": "gpus", "import-gguf": "import_gguf", "lint": "lint", "pareto": "pareto",
    "plan": "plan", "realign": "realign", "report": "report", "sweep": "sweep",
    "verify": "verify", "fleet sweep": "sweep_fleet",
    "evidence cpu": "ask_cpu_libraries",
    "evidence names": "read_kernel_names", "evidence ncu": "count_kernels",
    "evidence sdpa": "sdpa_backend", "map build": "build_map",
    "map candidates": "candidates", "map check": "check_map", "map diff": "diff_maps",
    "map export": "export_map", "map figure": "draw_map",
    "map intersect": "intersect", "map list": "list_maps", "map rules": "rule_table",
    "map show": "open_source", "map table": "map_table",
}  # fmt: skip
"""The function of each command."""


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), f"{path} {name}".strip())


COMMANDS = dict(commands(typer.main.get_command(app)))
VERBS = [path for path, name in FUNCTIONS.items() if hasattr(getattr(gacprof, name), "request")]


def function(path: str) -> Any:
    return getattr(gacprof, FUNCTIONS[path])


def test_every_command_is_a_function_too():
    assert COMMANDS.keys() == FUNCTIONS.keys()
    assert set(FUNCTIONS.values()) <= set(gacprof.__all__)
    assert set(FUNCTIONS) - set(VERBS) == {"map show"}  # whose request chooses what is printed


@pytest.mark.parametrize("path", COMMANDS)
def test_no_command_has_an_option_outside_of_its_requests(path):
    requests = list(get_type_hints(inspect.unwrap(COMMANDS[path].callback)).values())[:-1]
    assert requests and all(issubclass(request, Request) for request in requests)
    known = [name for request in requests for name, _, _ in flattened(request)]
    assert [parameter.name for parameter in COMMANDS[path].params] == known
    assert all(getattr(parameter, "help", "") for parameter in COMMANDS[path].params)


def flattened(request: type[Request]) -> list[tuple[str, Option, object]]:
    found = []
    for name, known in options_of(request):
        if known.nested is None:
            found.append((name, known, request.__dataclass_fields__[name].default))
        else:
            found += flattened(known.nested)
    return found


@pytest.mark.parametrize("path", COMMANDS)
def test_paragraphs_of_help_are_broken_by_the_terminal_alone(path):
    assert all("\n" not in paragraph for paragraph in COMMANDS[path].help.split("\n\n"))


@pytest.mark.parametrize("path", VERBS)
def test_every_field_is_an_option_and_a_parameter_with_the_same_default(path):
    request = function(path).request
    offered = {parameter.name: parameter for parameter in COMMANDS[path].params}
    for name, known, default in flattened(request):
        parameter = offered[name]
        if not known.argument:
            assert spelling(name, known) in parameter.opts
        if isinstance(default, bool | int | float | str) and not known.many:
            assert parameter.default == default
    in_python = inspect.signature(function(path)).parameters
    assert list(in_python) == list(inspect.signature(request).parameters)
    assert {each.name for each in fields(request)} <= set(in_python)


def test_what_an_option_means_is_written_once():
    said: dict[tuple[str, str], list[str]] = {}
    for path in sorted(Path(gacprof.__file__).parent.rglob("*.py")):
        for field in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match field:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(keywords=known)):
                    helps = [ast.literal_eval(each.value) for each in known if each.arg == "help"
                             and not isinstance(each.value, ast.Name | ast.JoinedStr)]  # fmt: skip
                    for help_ in helps:
                        said.setdefault((name, help_), []).append(path.name)
    assert len(said) > 100
    assert {key: places for key, places in said.items() if len(places) > 1} == {}


class Own(Request):
    """A request of options that others have, and of one that none has."""

    count: int = option(default=1, read=int, name="--number", group="A", help="How many.")


class Alike(Request):
    count: int = option(like=Own, group="B")


def test_an_option_is_like_anothers_but_for_what_it_says_itself():
    (name, known), (_, own) = *options_of(Alike), *options_of(Own)
    assert known == replace(own, group="B") and spelling(name, known) == "--number"
    with pytest.raises(TypeError, match="count"):
        Alike()
    assert Own().count == 1


@pytest.mark.parametrize("path", VERBS)
def test_numbers_out_of_range_are_one_line_on_the_command_line_and_an_error_of_ours(path, run):
    known_of = {
        name: (known, default) for name, known, default in flattened(function(path).request)
    }
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
        with pytest.raises(GacprofError, match=f"^{name}.* is -[67].*: it must be "):
            function(path)(**needed | {name: bad})
        result = run(*path.split(), *words, f"{spelling(name, known)}={bad}")
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


def test_names_and_order_of_the_command_line_are_taken_in_python_too(asvd, tmp_path, monkeypatch):
    asked = {"axis": "head_dim", "d": 107}
    by_name = gacprof.explain("a100-published", "attention", **asked)
    assert gacprof.explain("a100-published", op="attention", **asked) == by_name
    monkeypatch.setattr("gacprof.reporting.page.MOST_CURVES", 1)  # a figure takes seconds
    page = gacprof.report(asvd, gpu="h100", out=tmp_path / "page")
    assert page.parent == tmp_path / "page" and 'id="diagnosis"' in page.read_text()


def test_a_commands_name_leads_to_its_function():
    for path, name in FUNCTIONS.items():
        command = path.removesuffix(" sweep")
        if command != name and command.isidentifier():
            with pytest.raises(AttributeError, match=f"the function is gacprof.{name}"):
                gacprof.__getattr__(command)


def test_none_is_no_constraint_and_another_value_is_refused_by_name():
    assert PlanRequest("model", constraints=None) == PlanRequest("model")
    with pytest.raises(GacprofError, match=r"constraints is .*: it must be a Constraints"):
        PlanRequest("model", constraints={"preset": "vllm"})  # type: ignore[arg-type]


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
