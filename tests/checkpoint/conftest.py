"""A witness for hostile input: what the interpreter did while it was being read."""

import encodings.raw_unicode_escape  # noqa: F401 - Python decodes a pickle's text by it
import sys

import pytest

_ACTS = (
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "ctypes.",
    "pickle.",
    "exec",
    "pty.",
    "webbrowser.",
)
_seen = None


def _hook(event, args):
    if _seen is None or "PYTEST_CURRENT_TEST" in str(args[:1]):
        return
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    acts = event.startswith(_ACTS) and event not in ("os.scandir", "os.listdir")
    if event == "import" or acts or writes:
        _seen.append(f"{event} {args[:2]}"[:200])


sys.addaudithook(_hook)  # cannot be removed again, hence the switch


@pytest.fixture
def nothing_happens():
    """Fails the test if, within it, anything is imported, run, connected to or written."""
    global _seen
    modules = set(sys.modules)
    _seen = []
    try:
        yield
    finally:
        acts, _seen = _seen, None
    assert acts == []
    assert set(sys.modules) == modules
