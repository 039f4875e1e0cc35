"""The first process of a step's pod: `step_launcher.py OUTPUT_FILE COMMAND…`, as Argo Workflows and KFP's launcher.

The command is a process group of its own. On SIGTERM its standard output is closed and the group gets SIGTERM; the exit
of this process, after the time measured on KFP 2.17, kills what still runs. After success the last line of the log is
KFP's ExecutorOutput. It needs Python alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_SECONDS = 0.7


def main(output_file: str, *command: str) -> int:
    """Run the command and return its exit code."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout is not None
    output = process.stdout.fileno()

    def terminate(number: int, frame: object) -> None:
        os.close(output)
        os.killpg(process.pid, number)
        deadline = time.monotonic() + GRACE_SECONDS
        # The shell of KFP's command ends at once; its Python process is then a child of this one, which has PID 1.
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                os.waitpid(-1, os.WNOHANG)
                time.sleep(0.01)
            print("killed after the grace period", flush=True)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    while content := os.read(output, 1 << 16):
        os.write(sys.stdout.fileno(), content)
    code = process.wait()
    if code == 0:
        print(Path(output_file).read_text(), flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
