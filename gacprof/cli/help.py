"""What ``--help`` prints: the verbs in groups; a verb's sentences, an example and its options."""

from __future__ import annotations

import inspect
import shutil
import textwrap
import typing

from gacprof.cli.source import paragraphs, parameter_texts
from gacprof.cli.verbs import (
    EXAMPLES,
    FACTORS,
    FACTORS_HELP,
    GROUPS,
    OPTION_NAMES,
    command,
    docstring_of,
)

ABOUT = "Which tensor sizes your GPU serves well, why, and how to move a model onto them."
LINE = 100  # characters of a line at most
COLUMN = 24  # where the sentences on options begin


def overview(words: str = "") -> str:
    """The verbs in groups; those of maps only behind ``map``."""
    lines = [f"gacprof: {ABOUT}", "", "Usage: gacprof VERB …"]
    for group, examples in GROUPS.items():
        verbs = [verb for verb in examples if verb.startswith(words)]
        if verbs:
            lines += ["", f"{group}:"]
            lines += [entry(verb, paragraphs(docstring_of(verb))[0]) for verb in verbs]
    lines += ["", "gacprof VERB --help says more, with an example. --json prints a result as JSON."]
    return "\n".join(lines)


def verb_help(verb: str) -> str:
    """A verb's sentences, an example, and what it takes."""
    first, *rest = paragraphs(docstring_of(verb))
    needs, options = [], []
    for name, parameter in inspect.signature(command(verb)).parameters.items():
        described = parameter_help(verb, name)
        if parameter.default is True:  # the option is --no-…
            described = described.replace("Whether to", "Do not", 1)
        if parameter.default is inspect.Parameter.empty:
            needs.append(entry(label(name, parameter), described))
        else:
            options.append(entry(label(name, parameter), described + values_text(parameter)))
    lines = [*wrapped(f"gacprof {verb}: {first}"), "", f"Example: gacprof {EXAMPLES[verb]}"]
    for text in rest:
        lines += ["", *wrapped(text)]
    if needs:
        lines += ["", "Needs:", *needs]
    options.append(entry("--json", "Print the result as JSON."))
    return "\n".join([*lines, "", "Options:", *options])


def parameter_help(verb: str, name: str) -> str:
    """The sentences on a parameter of a verb."""
    if name == FACTORS.name:
        return FACTORS_HELP
    return parameter_texts(docstring_of(verb))[name]


def wrapped(text: str, indent: str = "") -> list[str]:
    """Lines that fit the terminal."""
    width = min(LINE, shutil.get_terminal_size((LINE, 24)).columns)
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def entry(name: str, text: str) -> str:
    """A name, and its sentences in a column of their own."""
    lines = wrapped(text, " " * COLUMN)
    if len(name) + 4 > COLUMN:
        return "\n".join([f"  {name}", *lines])
    return "\n".join([f"  {name:{COLUMN - 2}}{lines[0].lstrip()}", *lines[1:]])


def label(name: str, parameter: inspect.Parameter) -> str:
    """How an option is written: ``--tokens N …``, ``--map, --gpu SOURCE``, ``CHECKPOINT``."""
    option, word = "--" + name.replace("_", "-"), name.upper().replace("_", "-")
    annotation = typing.get_args(parameter.annotation)[0]
    hint = str(annotation)
    if annotation is bool:
        return option if not parameter.default else f"--no-{option[2:]}"
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and name not in OPTION_NAMES:
        return word + " …" * ("..." in hint)
    if "int" in hint:
        word = "N"
    elif "float" in hint and "str" not in hint:
        word = "X"
    if hint.startswith("tuple"):
        word += " …" if "..." in hint else f" {word}"
    return f"{', '.join(OPTION_NAMES.get(name, (option,)))} {word}"


def values_text(parameter: inspect.Parameter) -> str:
    """The values that an option may have, and the one where it is not named."""
    hint, default = typing.get_args(parameter.annotation)[0], parameter.default
    text = ""
    if typing.get_origin(hint) is typing.Literal:
        text = f" One of {', '.join(typing.get_args(hint))}."
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    if default in (None, "") or isinstance(default, bool):
        return text
    return f"{text} Default: {default}."
