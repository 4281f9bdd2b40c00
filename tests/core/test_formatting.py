"""What strangers' texts look like on a terminal."""

from __future__ import annotations

import pytest

from gacprof.core.formatting import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model.layers.0", "model.layers.0"),
        (
            "‖W − u·v‖ 1\N{NARROW NO-BREAK SPACE}%\n\té",
            "‖W − u·v‖ 1\N{NARROW NO-BREAK SPACE}%\n\té",
        ),
        ("a\x1b[31mred", r"a\x1b[31mred"),
        ("a\x07\x08\x7f\x9b", r"a\x07\x08\x7f\x9b"),
        ("a\r\u202eb", r"a\r\u202eb"),
        ("a\ud83d", r"a\ud83d"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown
