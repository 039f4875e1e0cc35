"""How fast are images and texts embedded, served and decoded, beside transformers, Pillow and cv2?

A random CLIP of ViT-B/32's sizes: its embeddings beside transformers' on the same weights and threads, a server's by V2
beside the graph's; a random YOLOS of YOLOS-Ti's sizes beside transformers'; and 1080p JPEGs to 224 x 224 pixels beside
Pillow and cv2 alone.

    python benchmarks/vision.py --quick     # ViT-S/32's sizes, one round
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from environments import prepare_environment
from harness import Target, build_parser, build_target, compute_ratios, log, print_result, run_in_turn
from load import Request
from servers import Peer, Server

PEERS = Path(__file__).parent / "peers"
EMBED, DECODE, DETECT = (PEERS / "vision" / f"{name}.py" for name in ("embed", "decode", "detect"))
TRANSFORMERS, SERVED, DECODED = 0.9, 0.9, 0.9
BATCHES, BATCH, CLIENTS = (1, 32), 32, 2
OURS = Peer(
    "mindsporeserver",
    "",
    (
        *("python", "-m", "mindsporeserver", "--model_name=model", "--model_dir={model}", "--http_port={http}"),
        "--enable_grpc=false",
    ),
    "/health",
)
Found = tuple[list[Target], dict[str, dict[str, list[float]]]]


def prepare_peer(requirements: Path) -> Path | None:
    """Return a peer's Python; None where its packages cannot be installed."""
    try:
        return prepare_environment(requirements) / "python"
    except RuntimeError as error:
        log(f"{requirements.stem}: skipped, its packages cannot be installed ({str(error).strip().splitlines()[-1]})")
        return None


def run(python: Path, *words: object) -> dict[str, float]:
    """Run a peer and return its figures."""
    done = subprocess.run([python, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def keep(kept: list[dict[str, float]], python: Path, *words: object) -> float:
    """Run a peer, append its figures, and return the seconds of images."""
    kept.append(run(python, *words))
    return kept[-1]["images"]


def make_model(root: Path, peer: Path, size: str) -> tuple[Path, Path]:
    """Write a random CLIP as a Hugging Face directory, and import it; both directories."""
    from tokenizers import Tokenizer, models

    from kfp_mindspore.vision.bundle import import_model

    source = root / "source"
    subprocess.run([peer, EMBED, "write", source, size], check=True, capture_output=True)
    words = {"<pad>": 0, **{f"w{number}": number for number in range(1, 1000)}}
    Tokenizer(models.WordLevel(words, unk_token="<pad>")).save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    (source / "preprocessor_config.json").write_text(json.dumps({"size": 224}))
    import_model(source, root / "bundle")
    return source, root / "bundle"


def compare_embeddings(source: Path, bundle: Path, peer: Path, rounds: int, size: str) -> Found:
    """Measure image batches and text batches beside transformers."""
    targets, bars = [], {}
    for batch in BATCHES:
        ours: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        words = (batch, 3 if batch > 1 else 20)
        ways = {
            "ours": partial(keep, ours, Path(sys.executable), EMBED, "ours", bundle, *words),
            "transformers": partial(keep, theirs, peer, EMBED, "transformers", source, *words),
        }
        run_in_turn(ways, rounds)
        for kind in ("images", "texts"):
            found = {way: [one[kind] for one in ones] for way, ones in (("ours", ours), ("transformers", theirs))}
            bars[f"{size}, seconds for {kind}, batch {batch}"] = found
            ratios = compute_ratios(found["transformers"], found["ours"])
            name = f"{size}: {kind}/s / transformers, batch {batch}"
            targets.append(build_target(name, ratios, TRANSFORMERS, at_least=True))
    return targets, bars


def compare_detection(root: Path, peer: Path, rounds: int) -> Found:
    """Measure a detector beside transformers."""
    from kfp_mindspore.vision.bundle import import_model

    source, bundle = root / "yolos", root / "detector"
    subprocess.run([peer, DETECT, "write", source], check=True, capture_output=True)
    import_model(source, bundle)
    targets, bars = [], {}
    for batch in BATCHES:

        def measure(python: Path, way: str, model: Path, batch: int = batch) -> float:
            return run(python, DETECT, way, model, batch, 3 if batch > 1 else 20)["images"]

        ways = {
            "ours": partial(measure, Path(sys.executable), "ours", bundle),
            "transformers": partial(measure, peer, "transformers", source),
        }
        found = bars[f"YOLOS-Ti, seconds for images, batch {batch}"] = run_in_turn(ways, rounds)
        ratios = compute_ratios(found["transformers"], found["ours"])
        name = f"YOLOS-Ti: images/s / transformers, batch {batch}"
        targets.append(build_target(name, ratios, TRANSFORMERS, at_least=True))
    return targets, bars


def compare_served(bundle: Path, scratch: Path, rounds: int, size: str) -> Found:
    """Measure images per second, served in requests of 32, beside the bare graph in batches of 32."""
    from PIL import Image

    files = []
    for seed in range(BATCH):
        buffer = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), np.uint8)
        Image.fromarray(pixels).resize((224, 224), Image.Resampling.BICUBIC).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    request = _build_request(files)
    server = Server(OURS, bundle, scratch)
    try:
        server.post(request)

        def measure_server() -> float:
            """Two clients: one's images are decoded while the other's are computed."""
            count = 3 * CLIENTS
            start = time.perf_counter()
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(server.post, [request] * count))
            return (time.perf_counter() - start) / count

        ways: dict[str, Callable[[], float]] = {
            "mindsporeserver": measure_server,
            "graph": lambda: run(Path(sys.executable), EMBED, "ours", bundle, BATCH, 3)["images"],
        }
        found = run_in_turn(ways, rounds)
    finally:
        server.processes.stop()
    ratios = compute_ratios(found["graph"], found["mindsporeserver"])
    target = build_target(f"{size}: images/s, served / graph, batch {BATCH}", ratios, SERVED, at_least=True)
    return [target], {f"{size}, seconds for {BATCH} images": found}


def compare_decoding(root: Path, rounds: int) -> Found:
    """Measure 1080p JPEGs to pixels beside Pillow and cv2."""
    from PIL import Image

    coarse = np.random.default_rng(0).integers(0, 256, (27, 48, 3), np.uint8)
    file = root / "1080p.jpg"
    Image.fromarray(coarse).resize((1920, 1080), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    pythons = {"ours": Path(sys.executable), "pillow": Path(sys.executable)}
    if (opencv := prepare_peer(PEERS / "vision" / "opencv.txt")) is not None:
        pythons["cv2"] = opencv

    def measure(way: str) -> float:
        return run(pythons[way], DECODE, way, file, 30)["seconds"]

    found = run_in_turn({way: partial(measure, way) for way in pythons}, rounds)
    targets = [
        build_target(f"1080p JPEGs/s / {way}", compute_ratios(found[way], found["ours"]), DECODED, at_least=True)
        for way in pythons
        if way != "ours"
    ]
    return targets, {"seconds for a 1080p JPEG": found}


def _build_request(files: list[bytes]) -> Request:
    """Return a V2 request with binary tensors."""
    content = b"".join(len(file).to_bytes(4, "little") + file for file in files)
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(files)], "parameters": parameters}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return Request("/v2/models/model/infer", head + content, len(head))


def main() -> None:
    """Run the comparisons."""
    parser = build_parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, help="rounds [default: 5, 1 with --quick]")
    arguments = parser.parse_args()
    rounds, size = arguments.rounds or (1 if arguments.quick else 5), "S" if arguments.quick else "B"
    targets: list[Target] = []
    raw: dict[str, Any] = {"bars": {}}
    with tempfile.TemporaryDirectory(prefix="vision-") as directory:
        root = Path(directory)
        comparisons: list[partial[Found]] = [partial(compare_decoding, root, rounds)]
        if (peer := prepare_peer(PEERS / "language" / "transformers.txt")) is not None:
            source, bundle = make_model(root, peer, size)
            comparisons += [
                partial(compare_embeddings, source, bundle, peer, rounds, f"CLIP ViT-{size}/32"),
                partial(compare_detection, root, peer, rounds),
                partial(compare_served, bundle, root / "served", rounds, f"CLIP ViT-{size}/32"),
            ]
        for compare in comparisons:
            log(f"{compare.func.__name__} …")
            found, bars = compare()
            targets += found
            raw["bars"] |= bars
    print_result("vision", targets, raw)


if __name__ == "__main__":
    main()
