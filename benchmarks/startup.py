"""How long do `import kfp_mindspore` and `kfp-mindspore --help` take, beside kfp's own?"""

from __future__ import annotations

import sys
import sysconfig
from functools import partial
from pathlib import Path

from harness import build_parser, build_target, pair_ratios, print_result, run_in_turn, time_command

SCRIPTS = Path(sysconfig.get_path("scripts"))


def main() -> None:
    arguments = build_parser(__doc__ or "").parse_args()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import kfp_mindspore": [sys.executable, "-c", "import kfp_mindspore"],
        "import kfp": [sys.executable, "-c", "import kfp"],
        "kfp-mindspore --help": [str(SCRIPTS / "kfp-mindspore"), "--help"],
        "kfp --help": [str(SCRIPTS / "kfp"), "--help"],
    }
    candidates = {name: partial(time_command, argv) for name, argv in commands.items()}
    run_in_turn(candidates, 1)
    raw = run_in_turn(candidates, 5 if arguments.quick else 15)
    imports = [with_it - bare for with_it, bare in zip(raw["import kfp_mindspore"], raw["python -c pass"], strict=True)]
    print_result(
        "startup",
        [
            build_target("seconds of import kfp_mindspore, beyond python itself", imports, 0.1),
            build_target("seconds of kfp-mindspore --help, whole process", raw["kfp-mindspore --help"], 0.3),
            build_target(
                "import kfp_mindspore / import kfp", pair_ratios(raw["import kfp_mindspore"], raw["import kfp"])
            ),
            build_target(
                "kfp-mindspore --help / kfp --help", pair_ratios(raw["kfp-mindspore --help"], raw["kfp --help"])
            ),
        ],
        raw,
    )


if __name__ == "__main__":
    main()
