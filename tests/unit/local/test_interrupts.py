"""SIGTERM as an exception."""

from __future__ import annotations

import os
import signal

import pytest

from kfp_mindspore.local.interrupts import clean_up_on_sigterm


def test_terminated_function_cleans_up_and_restores_handler() -> None:
    cleaned = []

    @clean_up_on_sigterm
    def wait() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(True)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        wait()
    assert (caught.value.code, cleaned) == (143, [True])
    assert signal.getsignal(signal.SIGTERM) is before
