"""One line on what went wrong: what, where, and what to do."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import CoercionError, CycloptsError, MissingArgumentError, UnknownOptionError
from cyclopts.exceptions import RepeatArgumentError, UnusedCliTokensError

from gacprof.cli.help import label as option_label
from gacprof.cli.help import parameter_help
from gacprof.cli.source import parameter_texts
from gacprof.cli.verbs import EXAMPLES, OPTION_NAMES, VERBS, command, docstring_of
from gacprof.core.errors import INSTALL, GacprofError

IN_MODELS = ("torch", "scipy", "pandas", "matplotlib", "jinja2", "pyarrow", "transformers")
EXTRAS = dict.fromkeys(IN_MODELS, "models")
EXTRAS |= {"huggingface_hub": "hub", "ray": "fleet", "ncu_report": "ncu"}
"""A package that a plain install leaves out: the extra that brings it."""
KEPT = {
    "sweep": "Finished blocks are kept in its run folder: go on with its --out and --resume",
    "compress": "Finished layers are kept: the same command goes on with the others",
}
NUMBERS = {int: "whole number such as 128, or several as 2 4", float: "number such as 0.85"}
NOT_KEPT = "No file is half written: run it again"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_verb(words: str) -> GacprofError:
    """The error of a verb that is none, with the nearest one."""
    nearest = get_close_matches(words, [*VERBS, "map", "--help", "--version"], n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else "gacprof --help lists the verbs"
    return GacprofError(f"there is no verb '{words}': {hint}")


def parse_text(error: CycloptsError, verb: str, words: Sequence[str]) -> str:
    """What is wrong with a command line."""
    name = error.argument.field_info.name if error.argument is not None else ""
    label = " or ".join(OPTION_NAMES.get(name, (name.upper().replace("_", "-"),)))
    if isinstance(error, MissingArgumentError):
        what = parameter_help(verb, name).partition(". ")[0].rstrip(".")
        if error.keyword in words:
            return f"{error.keyword} needs a value: {what}"
        lack = option_label(name, inspect.signature(command(verb)).parameters[name])
        is_late = words and not lack.startswith("--")
        order = " Name it before options that take several." if is_late else ""
        return f"{verb} needs {lack}: {what}.{order} Example: gacprof {EXAMPLES[verb]}"
    if isinstance(error, RepeatArgumentError):
        option = error.token.keyword or label
        names = [" and ".join(names) for names in OPTION_NAMES.values() if option in names]
        return f"{[*names, option][0]}: give one value, once"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        token = error.unused_tokens[0]
        place = [*words, token].index(token)
        option = words[place - 2] if place >= 2 and words[place - 2].startswith("--") else ""
        why = f", {option} takes one value" if option else ""
        return f"'{token}' is one word too many{why}: see gacprof {verb} --help"
    if isinstance(error, CoercionError) and error.token:
        option = error.token.keyword or label
        if error.target_type in NUMBERS:
            return f"{option}: '{error.token.value}' is no {NUMBERS[error.target_type]}"
        if error.token.keyword is None:
            return f"{option}: {error}"
    if isinstance(error, UnknownOptionError):
        return f"{error} gacprof {verb} --help lists the options"
    return str(error)


def import_text(error: ImportError) -> str:
    """How to install a package that is missing; empty for one that no extra brings."""
    package = str(error.name or "").partition(".")[0]
    return f"this needs {package}: {INSTALL.format(EXTRAS[package])}" if package in EXTRAS else ""


def system_text(error: OSError, verb: str) -> str:
    """What the system refused; of a full disk what is kept."""
    text = str(error.strerror or error)
    if error.filename:
        text = f"{error.filename}: {text}"
    if error.errno == errno.ENOENT:
        text += ": check the path"
    if error.errno in FULL:
        text += f": free some space. {kept_text(verb)}"
    return text


def kept_text(verb: str) -> str:
    """What an interrupted verb leaves; empty for one that writes nothing."""
    writes = verb in VERBS and "out" in parameter_texts(docstring_of(verb))
    return KEPT.get(verb, NOT_KEPT if writes else "")
