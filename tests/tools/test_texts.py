"""What the tools make of a corpus: text as in print."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).parents[2] / "tools"


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fetch_brown = _tool("fetch_brown")

TAGGED = """

\tThe/at jury/nn said/vbd ``/`` no/at evidence/nn ''/'' was/bedz found/vbn (/( at/in 1/2/cd )/) ./.


\tWas/bedz it/pps so/rb ?/. ?/.
It/pps was/bedz ,/, the/at Mayor's/np$ men/nns said/vbd --/-- twice/rb ./.
"""


def test_tagged_words_become_text_as_in_print():
    assert fetch_brown.plain(TAGGED) == (
        'The jury said "no evidence" was found (at 1/2).\n'
        "Was it so? It was, the Mayor's men said -- twice."
    )
