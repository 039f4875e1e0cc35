"""Steps for categories and texts: one-hot vectors, indexes into a vocabulary, token ids."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import UNKNOWN_RULES
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.base import Arrays, TransformInputError
from kfp_mindspore.transform.pipeline import Pipeline, Step, require_fitted
from kfp_mindspore.transform.subwords import LEAST_SIZE, Subwords, read_tokenizer, train_tokenizer

Values = tuple[str, ...] | tuple[int | float, ...]
_UNITS = ("characters", "words", "subwords")
_SIDES = ("right", "left")
_TOKENS_BEFORE_VALUES = 2
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")


class Categories(Step):
    """Common base of the steps that replace each category by its position in `values`.

    Args:
        values: See the subclass.
        column: See the subclass.
        unknown: See the subclass.
    """

    def __init__(
        self, values: Sequence[str | float] | None = None, *, column: str = "", unknown: str = "ignore"
    ) -> None:
        super().__init__(column)
        if unknown not in UNKNOWN_RULES:
            raise UserError(f"{type(self).__name__}: unknown: must be {' or '.join(UNKNOWN_RULES)}, got {unknown!r}")
        self.values = _check_values(self, values)
        self.unknown = self.unknown_rule = unknown
        self._positions = None if self.values is None else _Positions(self.values)

    def fit(self, arrays: Arrays) -> Categories:
        """Return the step with the column's values; a step with values is returned unchanged."""
        if self.values is not None:
            return self
        return type(self)(_list_values(self, arrays), column=self.column, unknown=self.unknown)

    def replace_rule(self, unknown: str) -> Categories:
        """Return the step with another rule for unknown categories."""
        return type(self)(self.values, column=self.column, unknown=unknown)

    def find(self, batch: NDArray[Any]) -> NDArray[np.int64]:
        """Return each category's position in `values`, -1 for an unknown one.

        Raises:
            UserError: The step is not fitted.
        """
        if self._positions is None:
            raise require_fitted(self)
        return self._positions.find(batch)


class OneHot(Categories):
    """Categories to float32 vectors with a 1 at the category's position; zeros for an unknown category.

    Args:
        values: The categories, texts or numbers; None to fit them: all values in the column in ascending order.
        column: The input, (N, …) texts or numbers; the result has shape (N, …, K). May be left out when there is only
            one.
        unknown: Rule for a request's unknown category: `ignore` counts it and gives it zeros, `refuse` refuses the
            request. Datasets' own samples always get zeros.
    """

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return float32 with shape (*batch.shape, K)."""
        found = self.find(batch)
        hot: NDArray[np.float32] = (found[..., np.newaxis] == np.arange(len(self.values or ()))).astype(np.float32)
        return hot

    def find_unknown(self, computed: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which vectors are zeros."""
        unknown: NDArray[np.bool_] = np.logical_not(computed.any(axis=-1))
        return unknown

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return the category spec."""
        return dataclasses.replace(spec, dtype=_infer_dtype(self, self.values), shape=spec.shape[:-1])


class Vocabulary(Categories):
    """Categories to int32 indexes, from 1 on in `values` order; 0 for an unknown category.

    Args:
        values: The categories, texts or numbers; None to fit them: all values in the column in ascending order.
        column: The input; may be left out when there is only one.
        unknown: Rule for a request's unknown category: `ignore` counts it and gives it 0, `refuse` refuses the request.
            Datasets' own samples always get 0.
    """

    @property
    def size(self) -> int:
        """Index count, the unknown one included: an embedding table's rows."""
        return 1 + len(self.values or ())

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return int32 with the batch's shape."""
        return (self.find(batch) + 1).astype(np.int32)

    def find_unknown(self, computed: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which indexes are 0."""
        return np.asarray(computed == 0)

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return the category spec."""
        return dataclasses.replace(spec, dtype=_infer_dtype(self, self.values), range=None)


class Tokenize(Step):
    r"""Texts (UTF-8) to int32 ids with shape (N, length): 0 is padding, 1 an unknown token, 2 the first in `values`.

    Subwords need the extra `tokenizers` where the model is trained and where it is served.

    Args:
        length: Ids per text.
        unit: `characters`, `words` or `subwords`: a byte-level BPE of the training split, or a given tokenizer.
        lowercase: Whether words are compared in lower case. Words are then the matches of `\w+(?:['’]\w+)*`: letters,
            digits, underscores and inner apostrophes, without punctuation. None for the words between white space, in
            lower case and with their punctuation, as for tags.
        values: The tokens; None to fit them: all tokens in the column in ascending order.
        max_values: How many tokens to fit at most, the most frequent ones; 0 for all, of subwords for 8,000.
        side: Side on which a shorter text is padded and a longer one is cut: `right`, or `left`, with which the last id
            is the last token's, as a language model needs it to continue a text.
        column: The input; may be left out when there is only one.
        tokenizer: With subwords a tokenizer.json of Hugging Face's library tokenizers, which has a token for padding;
            its ids are kept. A path, read by `fit`, or the file's content, which the declaration has.
    """

    def __init__(
        self,
        length: int,
        unit: str = "characters",
        values: Sequence[str] | None = None,
        *,
        lowercase: bool | None = None,
        max_values: int = 0,
        side: str = "right",
        column: str = "",
        tokenizer: str = "",
    ) -> None:
        super().__init__(column)
        for name, number, least in (("length", length, 1), ("max_values", max_values, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise UserError(f"Tokenize: {name}: must be a number of at least {least}, got {number!r}")
        if unit not in _UNITS:
            raise UserError(f"Tokenize: unit: must be {' or '.join(_UNITS)}, got {unit!r}")
        if lowercase is not None and (unit == "characters" or not isinstance(lowercase, bool)):
            raise UserError(
                "Tokenize: lowercase: must be true or false with unit words or subwords, "
                f"got {lowercase!r}, unit {unit}"
            )
        if tokenizer and unit != "subwords":
            raise UserError(f"Tokenize: tokenizer: needs unit subwords, got {unit}")
        if unit == "subwords" and values is not None:
            raise UserError("Tokenize: values: must be left out with unit subwords, whose tokens are the tokenizer's")
        if unit == "subwords" and 0 < max_values < LEAST_SIZE:
            raise UserError(f"Tokenize: max_values: must be at least {LEAST_SIZE} with subwords, got {max_values}")
        if side not in _SIDES:
            raise UserError(f"Tokenize: side: must be {' or '.join(_SIDES)}, got {side!r}")
        checked = _check_values(self, values)
        if checked and not isinstance(checked[0], str):
            raise UserError(f"Tokenize: values: must be texts, got {checked[0]!r}")
        self.length = length
        self.unit = unit
        self.lowercase = lowercase
        self.values = None if checked is None else tuple(str(value) for value in checked)
        self.max_values = max_values
        self.side = side
        self.tokenizer = tokenizer
        self._subwords = Subwords(tokenizer, length, side) if tokenizer.lstrip().startswith("{") else None
        self._ids = {token: index for index, token in enumerate(self.values or (), _TOKENS_BEFORE_VALUES)}

    @property
    def size(self) -> int:
        """Id count, padding and the unknown token included: an embedding table's rows."""
        if self._subwords is not None:
            return self._subwords.size
        return _TOKENS_BEFORE_VALUES + len(self._ids)

    @property
    def padding(self) -> int:
        """Id of padding: 0 unless a given tokenizer has another one."""
        return 0 if self._subwords is None else self._subwords.padding

    @property
    def unknown(self) -> int:
        """Id of unknown tokens: 1 unless a given tokenizer has another one, or the padding's when it has none."""
        return 1 if self._subwords is None else self._subwords.unknown

    def split(self, text: bytes) -> Sequence[str]:
        """Return a text's characters or words; invalid UTF-8 is replaced by U+FFFD."""
        decoded = _decode(text)
        if self.unit == "characters":
            return decoded
        if self.lowercase is None:
            return decoded.lower().split()
        return _WORD.findall(decoded.lower() if self.lowercase else decoded)

    def count_unknown(self, texts: NDArray[Any]) -> tuple[int, int]:
        """Return how many of the texts' tokens are unknown, and how many tokens there are."""
        if self._subwords is not None:
            return self._subwords.count_unknown([_decode(text) for text in texts.flat])
        counts = collections.Counter(token for text in texts.flat for token in self.split(text))
        return sum(count for token, count in counts.items() if token not in self._ids), counts.total()

    def count_tokens(self, texts: NDArray[Any]) -> NDArray[np.int64]:
        """Return each text's token count before the cut to `length`."""
        if self._subwords is not None:
            counts = self._subwords.count_tokens([_decode(text) for text in texts.flat])
        else:
            counts = [len(self.split(text)) for text in texts.flat]
        return np.array(counts, np.int64)

    def fit(self, arrays: Arrays) -> Tokenize:
        """Return the step with the column's tokens; a step with values or a tokenizer is returned unchanged."""
        if self.values is not None or self._subwords is not None:
            return self
        column = self.get_column(arrays)
        _require_texts(self, arrays[column], UserError, column)
        if self.unit == "subwords":
            texts = (_decode(text) for text in arrays[column].flat)
            content = (
                read_tokenizer(self.tokenizer)
                if self.tokenizer
                else train_tokenizer(texts, self.max_values, bool(self.lowercase))
            )
            return Tokenize(
                self.length,
                self.unit,
                lowercase=self.lowercase,
                max_values=self.max_values,
                side=self.side,
                column=self.column,
                tokenizer=content,
            )
        counts = collections.Counter(token for text in arrays[column].flat for token in self.split(text))
        kept = counts.most_common(self.max_values or None)
        values = sorted(token for token, _ in kept)
        return Tokenize(
            self.length,
            self.unit,
            values,
            lowercase=self.lowercase,
            max_values=self.max_values,
            side=self.side,
            column=self.column,
        )

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return int32 with shape (*batch.shape, length)."""
        if self.values is None and self._subwords is None:
            raise require_fitted(self)
        _require_texts(self, batch, TransformInputError)
        if self._subwords is not None:
            found = self._subwords.encode([_decode(text) for text in batch.flat])
            return found.reshape(*batch.shape, self.length)
        ids = np.zeros((batch.size, self.length), np.int32)
        for row, text in zip(ids, batch.flat, strict=True):
            tokens = self.split(text)
            tokens = tokens[: self.length] if self.side == "right" else tokens[-self.length :]
            start = 0 if self.side == "right" else self.length - len(tokens)
            row[start : start + len(tokens)] = [self._ids.get(token, 1) for token in tokens]
        return ids.reshape(*batch.shape, self.length)

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return bytes, one text a row."""
        if spec.shape[-1] not in (-1, self.length):
            raise UserError(f"Tokenize: gives {self.length} ids, but {spec.name!r} must have shape {spec.shape}")
        return TensorSpec(spec.name, BYTES, spec.shape[:-1])


def find_refused(pipeline: Pipeline, raw: Arrays) -> NDArray[np.bool_]:
    """Return which rows the pipeline's steps refuse as requests, for a category that they do not know.

    Args:
        pipeline: The fitted preprocessing.
        raw: Its inputs.
    """
    refused = np.zeros(len(next(iter(raw.values()))), bool)
    strict = [step for step in pipeline.pre if step.unknown_rule == "refuse"]
    for row in range(len(refused) if strict else 0):
        try:
            pipeline.preprocess_request({name: array[row : row + 1] for name, array in raw.items()}, {})
        except TransformInputError:
            refused[row] = True
    return refused


class _Positions:
    """Value positions in a list.

    Args:
        values: Different texts, or different numbers.
    """

    def __init__(self, values: Values) -> None:
        self._texts: dict[bytes, int] = {}
        self._is_text = bool(values) and isinstance(values[0], str)
        self._count = len(values)
        if self._is_text:
            self._texts = {_encode(str(value)): index for index, value in enumerate(values)}
        else:
            numbers = np.asarray(values)
            self._order = np.argsort(numbers)
            self._sorted = numbers[self._order]

    def find(self, batch: NDArray[Any]) -> NDArray[np.int64]:
        """Return each element's position, -1 for an unknown one.

        Raises:
            TransformInputError: The batch holds numbers and the values are texts, or the reverse.
        """
        if not self._count:
            return np.full(batch.shape, -1, np.int64)
        if (batch.dtype == object) != self._is_text:
            kinds = ("texts", "numbers") if self._is_text else ("numbers", "texts")
            raise TransformInputError(f"input: must hold {kinds[0]}, got {kinds[1]}")
        if self._is_text:
            found = [self._texts.get(value, -1) for value in batch.flat]
            return np.array(found, np.int64).reshape(batch.shape)
        places = np.searchsorted(self._sorted, batch).clip(max=self._count - 1)
        return np.where(self._sorted[places] == batch, self._order[places], -1)


def _check_values(step: Step, values: Sequence[str | float] | None) -> Values | None:
    if values is None:
        return None
    where = f"{type(step).__name__}: values"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"{where}: must be a list of texts or of numbers, got {values!r}")
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(texts) != len(values) and len(numbers) != len(values):
        raise UserError(f"{where}: must be a list of texts or of numbers, got {list(values)!r:.80}")
    if len(set(values)) < len(values):
        repeated = next(value for value, count in collections.Counter(values).items() if count > 1)
        raise UserError(f"{where}: must be different, {repeated!r} is repeated")
    if not np.isfinite(numbers).all():
        raise UserError(f"{where}: must be finite, got {numbers!r:.80}")
    return tuple(texts) if texts else tuple(numbers)


def _list_values(step: Step, arrays: Arrays) -> list[str | float]:
    """Return the different values in a step's column in ascending order."""
    column = step.get_column(arrays)
    array = arrays[column]
    if array.dtype != object:
        # Not booleans: JSON's true and false are no numbers.
        found: list[str | float] = np.unique(array.astype(np.int8) if array.dtype == bool else array).tolist()
        return found
    _require_texts(step, array, UserError, column)
    return [value.decode(errors="surrogateescape") for value in sorted(set(array.flat))]


def _require_texts(step: Step, array: NDArray[Any], error: type[UserError], column: str = "") -> None:
    if array.dtype != object:
        where = f"{type(step).__name__}: {column!r}" if column else "input"
        raise error(f"{where}: must hold texts, got {array.dtype}")


def _decode(text: bytes) -> str:
    return text.decode(errors="replace")


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _infer_dtype(step: Step, values: Values | None) -> str:
    if values is None:
        raise require_fitted(step)
    if values and isinstance(values[0], str):
        return BYTES
    return "int64" if all(isinstance(value, int) for value in values) else "float32"
