"""A fake of mindsporeserver for tests of processes: standard library only, with faults on demand.

It accepts the flags that the backend sets, SERVER_FLAGS of the real server, and its own; other flags are refused, as by
the real server. It serves readiness, and at /pid its process number and the flags of SERVER_FLAGS. Its prediction, by
V1 and V2, is the model's name: the first line of model.mindir. It cannot load a model named `broken`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Flags of the real server that tests set; a test compares them with its parser.
SERVER_FLAGS = ("--max_batch", "--nonfinite", "--allow_model_code", "--model_key_file", "--workers")


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model_name")
    parser.add_argument("--model_dir", type=Path)
    parser.add_argument("--http_port", type=int)
    parser.add_argument("--grpc_port", type=int)
    parser.add_argument("--host")
    parser.add_argument("--fail", type=int, default=0, help="exit code to end with at once")
    parser.add_argument("--fail-when", type=Path, help="file that makes it fail at its start with code 3")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--busy", type=float, default=0.0, help="seconds for which its start uses the CPU")
    parser.add_argument("--ignore-terminate", action="store_true")
    parser.add_argument("--child", action="store_true", help="start a child in a session of its own")
    given, others = parser.parse_known_args()
    if unknown := [flag for flag in others if flag.partition("=")[0] not in SERVER_FLAGS]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    print(f"tiny server of {given.model_name} starts", flush=True)
    if given.fail or (given.fail_when and given.fail_when.exists()):
        print("the disk is on fire", file=sys.stderr)
        return given.fail or 3
    end = time.monotonic() + given.busy
    while time.monotonic() < end:
        pass
    model = (given.model_dir / "model.mindir").read_text().partition("\n")[0]
    if model == "broken":
        print("model.mindir: has no graph", file=sys.stderr)
        return 2
    if given.ignore_terminate:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.child:
        command = [sys.executable, "-c", "import time; time.sleep(600)", str(given.model_dir)]
        subprocess.Popen(command, start_new_session=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = not given.never_ready
            paths = {
                f"/v2/models/{given.model_name}/ready": {"name": given.model_name, "ready": ready},
                "/pid": {"pid": os.getpid(), "model_dir": str(given.model_dir), "others": others},
            }
            self.respond((200 if ready else 503) if self.path in paths else 404, paths.get(self.path, {}))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            output = {"name": "model", "shape": [1], "datatype": "BYTES", "data": [model]}
            if self.path == f"/v1/models/{given.model_name}:predict" and "instances" in request:
                self.respond(200, {"predictions": [model]})
            elif self.path == f"/v2/models/{given.model_name}/infer" and "inputs" in request:
                self.respond(200, {"model_name": given.model_name, "outputs": [output]})
            else:
                self.respond(404, {"error": self.path})

        def respond(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    ThreadingHTTPServer.address_family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
    server = ThreadingHTTPServer((given.host, given.http_port), Handler)
    if not given.ignore_terminate:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on {given.http_port} at {time.time()}", flush=True)
    server.serve_forever(poll_interval=0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main())
