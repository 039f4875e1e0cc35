"""`embedding` bundles, and their encoder as the server runs it.

network.json          the encoder's configuration and pooling, from which graphs are built at load
weights.safetensors   the weights, float32
tokenizer.json
prompts.npz           verified texts: `ids.<n>` and the network's `embedding.<n>`
signature.json        digests over all, see kfp_mindspore.formats.bundle
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from kfp_mindspore.formats.bundle import EMBEDDING_KIND, TOKENIZER_FILE
from kfp_mindspore.lm.network.encoder import Encoder, EncoderConfig, list_encoder_weights
from kfp_mindspore.lm.serving.network_files import open_kind, read_network_files, write_network
from kfp_mindspore.mindir.devices import require_cpu

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from kfp_mindspore.lm.sources.bert import SourceEncoder

BATCHES = (1, 8, 32)
_LENGTHS = (32, 128)
_TEXTS = ("The capital of France is Paris.", "How do I bake bread without yeast at home, and how long does it take?")


class EncoderRunner:
    """Computes embeddings for token IDs.

    Graphs are compiled when they are first needed, per batch size (1, 8, 32) and length (32, 128, the most).

    Args:
        config: The encoder's.
        weights: Arrays by `list_encoder_weights`' names, float32.
    """

    def __init__(self, config: EncoderConfig, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.config = config
        self.vocabulary_size, self.max_length, self.width = config.vocabulary_size, config.max_length, config.width
        self.lower_case = config.lower_case
        self.lengths = (*(length for length in _LENGTHS if length < config.max_length), config.max_length)
        names = list_encoder_weights(config)
        self._weights = [Tensor.from_numpy(np.ascontiguousarray(weights[name], np.float32)) for name in names]
        self._encoder = Encoder(config)

    def fit_length(self, length: int) -> int:
        """Return the graph length for a sequence with `length` tokens."""
        return next(size for size in self.lengths if size >= length)

    def fit_batch(self, count: int) -> int:
        """Return how many of `count` sequences the next graph computes: padding at most doubles its rows."""
        size = next((size for size in BATCHES if count <= size < 2 * count), 0)
        return count if size else max(size for size in BATCHES if size <= count)

    def compute(self, sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Compute sequences in one graph.

        Args:
            sequences: At most 32 token ID arrays, each with 1 to `max_length`.

        Returns:
            Embeddings, float32 with shape (n, width).
        """
        batch = next(size for size in BATCHES if size >= len(sequences))
        return self.compute_padded(sequences, batch, self.fit_length(max(map(len, sequences))))

    def compute_padded(self, sequences: Sequence[NDArray[np.int32]], batch: int, length: int) -> NDArray[np.float32]:
        """Compute sequences by the graph for a batch size and length.

        Args:
            sequences: At most `batch` token ID arrays, each with 1 to `length`.
            batch: Rows.
            length: Columns.

        Returns:
            Embeddings, float32 with shape (n, width).
        """
        ids, mask = np.zeros((batch, length), np.int32), np.zeros((batch, length), np.float32)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)], mask[row, : len(sequence)] = sequence, 1
        inputs = [Tensor.from_numpy(array) for array in (ids, np.zeros_like(ids), mask)]
        embeddings: NDArray[np.float32] = self._encoder.compile_and_run(*inputs, *self._weights).asnumpy()
        return embeddings[: len(sequences)]


class TextEmbedder:
    """Computes texts' embeddings in this process.

    Args:
        runner: The network.
        tokenizer: The tokenizer.
    """

    def __init__(self, runner: EncoderRunner, tokenizer: Tokenizer) -> None:
        self.runner = runner
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(runner.max_length)

    @classmethod
    def open(cls, bundle: Path) -> TextEmbedder:
        """Open an `embedding` bundle.

        Args:
            bundle: The bundle's directory.

        Raises:
            UserError: It is a bundle of another kind.
            CorruptBundleError: A file is not readable or has another digest than signed.
        """
        from tokenizers import Tokenizer

        open_kind(bundle, EMBEDDING_KIND)
        return cls(load(bundle), Tokenizer.from_file(str(bundle / TOKENIZER_FILE)))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return embeddings, float32 with shape (n, width); longer texts are cut to the model's limit.

        Args:
            texts: The texts.
        """
        runner = self.runner
        cased = [text.lower() for text in texts] if runner.lower_case else list(texts)
        sequences = [np.array(encoding.ids, np.int32) for encoding in self._tokenizer.encode_batch(cased)]
        # Sorted by length: a batch has little padding.
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        result = np.zeros((len(texts), runner.width), np.float32)
        start = 0
        while start < len(order):
            rows = order[start : start + runner.fit_batch(len(order) - start)]
            result[rows] = runner.compute([sequences[row] for row in rows])
            start += len(rows)
        return result


def write_embedding_model(model: SourceEncoder, bundle: Path, *, subject: str) -> float:
    """Write an embedding model as a bundle.

    Args:
        model: The model.
        bundle: The bundle's directory; replaced when it exists.
        subject: The model's origin, for messages.

    Returns:
        The padded graph's largest difference from graphs without padding, relative to the largest feature.

    Raises:
        KfpMindSporeError: It is more than 1e-5.
    """
    from tokenizers import Tokenizer

    tokenizer, runner = Tokenizer.from_str(model.tokenizer), EncoderRunner(model.config, model.weights)
    tokenizer.no_padding()
    tokenizer.enable_truncation(runner.max_length)
    texts = [text.lower() for text in _TEXTS] if model.config.lower_case else _TEXTS
    sequences = [np.array(tokenizer.encode(text).ids, np.int32) for text in texts]
    arrays: dict[str, NDArray[np.float32] | NDArray[np.int32]] = {}
    pairs = []
    for number, ids in enumerate(sequences):
        found, exact = runner.compute([ids])[0], runner.compute_padded([ids], 1, len(ids))[0]
        arrays |= {f"ids.{number}": ids, f"embedding.{number}": found}
        pairs.append((found, exact))
    return write_network(bundle, model, EMBEDDING_KIND, arrays, pairs, {}, subject=subject)


def load(directory: Path) -> EncoderRunner:
    """Load a bundle's network and compile its smallest graph.

    Args:
        directory: The bundle.

    Raises:
        CorruptBundleError: The configuration or weights are not readable; the message names the file.
    """
    require_cpu("language models, whose caches are the host's memory")
    config, weights = read_network_files(directory, EncoderConfig, list_encoder_weights)
    runner = EncoderRunner(config, weights)
    runner.compute([np.zeros(1, np.int32)])
    return runner
