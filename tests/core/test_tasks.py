"""What must not be broken off, is not."""

from __future__ import annotations

import os
import signal

import pytest

from gacprof.core.tasks import ctrl_c_held_back


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_until_the_end_of_the_block():
    done = False
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with ctrl_c_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            done = True
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_passes_and_the_handler_is_as_before():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="broken"), ctrl_c_held_back():
        raise ValueError("broken")
    assert signal.getsignal(signal.SIGINT) is before
