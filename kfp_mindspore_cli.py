"""Entry point of the command `kfp-mindspore`: Ctrl-C while the package is imported ends it without a stack trace."""

import signal

_HANDLER = signal.getsignal(signal.SIGINT)
if _HANDLER is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Run the command line and exit with its exit code."""
    from kfp_mindspore.cli.main import main as run

    # The commands handle KeyboardInterrupt. A shell disables SIGINT in background processes: that is kept.
    if _HANDLER is signal.default_int_handler:
        signal.signal(signal.SIGINT, _HANDLER)
    run()
