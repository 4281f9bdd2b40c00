"""One line on what went wrong: what, where, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from gacprof.cli.help import example_of, parameter_help
from gacprof.cli.verbs import OPTION_NAMES, VERBS, signature_of
from gacprof.core.errors import INSTALL, GacprofError

IN_MODELS = ("torch", "scipy", "pandas", "matplotlib", "jinja2", "pyarrow", "transformers")
EXTRAS = dict.fromkeys(IN_MODELS, "models")
EXTRAS |= {"huggingface_hub": "hub", "ray": "fleet", "ncu_report": "ncu"}
"""A package that a plain install leaves out: the extra that brings it."""
KEPT = {
    "sweep": "What was measured is kept: go on by the same command with --out FOLDER --resume",
    "compress": "Finished layers are kept: the same command goes on with the others",
}
NOT_WRITTEN = "Nothing was written"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_verb(words: str) -> GacprofError:
    """The error of a verb that is none, with the nearest one."""
    alike = get_close_matches(words, VERBS, n=1)
    hint = f"did you mean '{alike[0]}'?" if alike else "gacprof --help lists the verbs"
    return GacprofError(f"there is no verb '{words}': {hint}")


def parse_text(error: CycloptsError, verb: str, words: Sequence[str]) -> str:
    """What is wrong with a command line."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.field_info.name
        option = error.keyword or next(iter(error.argument.names), "")
        if error.keyword and error.keyword in words:
            return f"{option} lacks a value: {parameter_help(verb, name)}"
        label = " or ".join(OPTION_NAMES.get(name, (name.upper().replace("_", "-"),)))
        text = parameter_help(verb, name)
        return f"{verb} needs {label}. {text} Example: {example_of(verb)}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        token = error.unused_tokens[0]
        option = option_before(token, words)
        return f"'{token}' is one word too many{option}: see gacprof {verb} --help"
    text = str(error).rstrip()
    if isinstance(error, UnknownOptionError) and "Did you mean" not in text:
        text += f" gacprof {verb} --help lists the options"
    return text


def option_before(token: str, words: Sequence[str]) -> str:
    """The option of one value that a token stands behind, as a second value."""
    place = list(words).index(token) if token in words else 0
    if place >= 2 and words[place - 2].startswith("--"):
        return f", {words[place - 2]} takes one value"
    return ""


def import_text(error: ImportError) -> str:
    """How to install a package that is missing; empty for one that no extra brings."""
    package = str(error.name or "").partition(".")[0]
    return f"this needs {package}: {INSTALL.format(EXTRAS[package])}" if package in EXTRAS else ""


def system_text(error: OSError, verb: str) -> str:
    """What the system refused; of a full disk what is kept."""
    text = str(error.strerror or error)
    if error.filename:
        text = f"{error.filename}: {text}"
    if error.errno in FULL:
        text += f". {kept_text(verb)}"
    return text


def kept_text(verb: str) -> str:
    """What an interrupted verb leaves; empty for one that writes nothing."""
    writes = verb in VERBS and "out" in signature_of(verb).parameters
    return KEPT.get(verb, NOT_WRITTEN if writes else "")
