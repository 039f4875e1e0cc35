"""`python model_server.py FLAGS…`: mindsporeserver itself, as a script."""

from __future__ import annotations

import sys

from mindsporeserver.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
