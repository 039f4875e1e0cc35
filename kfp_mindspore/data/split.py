"""Sample splits: stratified, random, contiguous, by time, by group, or given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import SPLITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MODES = ("stratified", "random", "contiguous", "time:FIELD", "group:FIELD", "column:FIELD")
_TRAIN, _VALIDATION, _TEST = range(3)
_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation", "eval": "validation", "training": "train"}


def parse_mode(mode: str) -> tuple[str, str]:
    """Return a split's kind and field, such as ("time", "day") for `time:day`.

    Raises:
        ValidationError: The mode is not in `MODES`.
    """
    kind, _, field = mode.partition(":")
    if kind not in [one.partition(":")[0] for one in MODES] or bool(field) != (kind in ("time", "group", "column")):
        raise ValidationError([f"split: must be one of {', '.join(MODES)}, got {mode!r}"], subject="load_dataset")
    return kind, field


def parse_shard(shard: str) -> tuple[int, int]:
    """Return a shard's number and their count, such as (2, 4) for `2/4`.

    Raises:
        ValidationError: It is no such pair.
    """
    number, slash, count = shard.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValidationError(
            [f"shard: must be a number from 1 on and the number of shards, such as 2/4, got {shard!r}"]
        )
    return int(number), int(count)


def check_fractions(validation_fraction: float, test_fraction: float) -> None:
    """Raise ValidationError unless both fractions and their sum are between 0 and 1."""
    fractions = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    errors = [
        f"{field}: must be between 0 and 1, got {value}" for field, value in fractions.items() if not 0 < value < 1
    ]
    if not errors and validation_fraction + test_fraction >= 1:
        errors = [f"validation_fraction + test_fraction: must be below 1, got {validation_fraction + test_fraction}"]
    if errors:
        raise ValidationError(errors, subject="load_dataset")


def split_samples(
    count: int,
    kind: str,
    *,
    values: NDArray[Any] | None,
    classes: NDArray[Any] | None,
    given: NDArray[np.int8] | None,
    fractions: tuple[float, float],
    limit: int,
    seed: int,
) -> dict[str, NDArray[np.int64]]:
    """Return each split's sample indexes.

    Args:
        count: Sample count.
        kind: The `MODES` part before the colon.
        values: Times, groups or split names, with shape (count,).
        classes: A stratified split's targets.
        given: Each sample's index into SPLITS, for sources that are split; a split without samples is taken from the
            training split.
        fractions: Fractions of all samples in the validation and the test split.
        limit: Samples to keep from the source, or from each split that it has; 0 for all.
        seed: Seed for the shuffle and for the samples that are kept.

    Raises:
        UserError: The samples cannot be split like this.
    """
    import numpy as np

    if kind == "column" and values is not None:
        given = parse_names(values)
        kind = "random" if classes is None else "stratified"
    everything = np.arange(count)
    parts = [everything] if given is None else [everything[given == index] for index in range(len(SPLITS))]
    parts = [_keep(part, kind, classes, limit, seed) for part in parts]
    if given is None:
        return _divide(parts[_TRAIN], kind, values, classes, fractions, seed, SPLITS)
    found = dict(zip(SPLITS, parts, strict=True))
    if not len(found["train"]):
        raise UserError("split: no sample is in the split train")
    missing = tuple(split for split in SPLITS if not len(found[split]))
    if missing:
        found |= _divide(found["train"], kind, values, classes, fractions, seed, ("train", *missing))
    return found


def _keep(
    chosen: NDArray[np.int64], kind: str, classes: NDArray[Any] | None, limit: int, seed: int
) -> NDArray[np.int64]:
    """Return at most `limit` samples in their order, for a stratified split with the same class shares.

    Raises:
        UserError: A stratified split has more classes than `limit`.
    """
    import numpy as np

    if not limit or len(chosen) <= limit:
        return chosen
    if kind == "stratified" and classes is not None:
        if limit < (count := len(np.unique(classes[chosen]))):
            raise UserError(
                f"limit: must be at least the number of classes, {count}, got {limit}",
                hint="Keep samples at random: --split random.",
            )
        kept = _stratify(chosen, classes[chosen], {"test": limit, "validation": 0}, seed)["test"]
    else:
        kept = np.random.default_rng(seed).choice(chosen, limit, replace=False)
    return np.sort(kept)


def _divide(
    chosen: NDArray[np.int64],
    kind: str,
    values: NDArray[Any] | None,
    classes: NDArray[Any] | None,
    fractions: tuple[float, float],
    seed: int,
    splits: tuple[str, ...],
) -> dict[str, NDArray[np.int64]]:
    import numpy as np

    # Counts, not shares of the rest: 0.1 × 90 is 9 whatever the test split has.
    counts = {
        split: math.ceil(round(fraction * len(chosen), 6)) if split in splits else 0
        for split, fraction in zip(("validation", "test"), fractions, strict=True)
    }
    if sum(counts.values()) >= len(chosen):
        raise UserError(
            f"split: {len(chosen)} samples are too few for {counts['validation']} and {counts['test']} more"
        )
    if kind == "stratified" and classes is not None:
        return _stratify(chosen, classes[chosen], counts, seed)
    if kind == "group" and values is not None:
        return _divide_groups(chosen, values[chosen], counts, seed)
    if kind == "time" and values is not None:
        chosen = chosen[np.argsort(values[chosen], kind="stable")]
    elif kind != "contiguous":
        chosen = np.random.default_rng(seed).permutation(chosen)
    ends = np.cumsum([len(chosen) - sum(counts.values()), counts["validation"]])
    parts = dict(zip(SPLITS, np.split(chosen, ends), strict=True))
    return {split: part for split, part in parts.items() if split in splits}


def _stratify(
    chosen: NDArray[np.int64], classes: NDArray[Any], counts: dict[str, int], seed: int
) -> dict[str, NDArray[np.int64]]:
    parts = {"train": chosen}
    for split in ("test", "validation"):
        if counts[split]:
            try:
                rows, held = _draw_stratified(classes, counts[split], seed)
            except ValueError as error:
                raise UserError(
                    f"cannot split {len(chosen)} samples by label: {error}", hint="Split at random: --split random."
                ) from None
            parts["train"], parts[split], classes = parts["train"][rows], parts["train"][held], classes[rows]
    return parts


def _draw_stratified(classes: NDArray[Any], count: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows that stay and `count` drawn rows, both with the classes' shares, in random order.

    It draws as scikit-learn 1.7's `train_test_split(stratify=…)` does, whose import takes longer than loading most data
    sets: a seed keeps its split.

    Raises:
        ValueError: A class has one row, or a part has fewer rows than there are classes.
    """
    import numpy as np

    names, index, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    rest = len(classes) - count
    if sizes.min() < 2:
        raise ValueError(f"class {names[sizes.argmin()]} has one sample only")
    if min(count, rest) < len(names):
        raise ValueError(f"{min(count, rest)} samples are fewer than the {len(names)} classes")
    generator = np.random.RandomState(seed)
    kept_sizes = _allocate(sizes, rest, generator)
    drawn_sizes = _allocate(sizes - kept_sizes, count, generator)
    kept: list[NDArray[np.intp]] = []
    drawn: list[NDArray[np.intp]] = []
    by_class = np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])
    for rows, kept_size, drawn_size in zip(by_class, kept_sizes, drawn_sizes, strict=True):
        shuffled = rows[generator.permutation(len(rows))]
        kept.append(shuffled[:kept_size])
        drawn.append(shuffled[kept_size : kept_size + drawn_size])
    return generator.permutation(np.concatenate(kept)), generator.permutation(np.concatenate(drawn))


def _allocate(sizes: NDArray[np.intp], count: int, generator: np.random.RandomState) -> NDArray[np.intp]:
    """Divide `count` among classes in proportion to their sizes: largest remainders first, equal ones at random."""
    import numpy as np

    exact = sizes / sizes.sum() * count
    allocated: NDArray[np.intp] = np.floor(exact).astype(np.intp)
    remainders = exact - allocated
    missing = int(count - allocated.sum())
    for remainder in np.unique(remainders)[::-1]:
        if missing <= 0:
            break
        (tied,) = np.nonzero(remainders == remainder)
        chosen = generator.choice(tied, min(len(tied), missing), replace=False)
        allocated[chosen] += 1
        missing -= len(chosen)
    return allocated


def _divide_groups(
    chosen: NDArray[np.int64], groups: NDArray[Any], counts: dict[str, int], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Assign whole groups, in random order, to the test split until it is full, then to validation, then to train."""
    import numpy as np

    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    wanted = [split for split in ("test", "validation") if counts[split]]
    if len(sizes) <= len(wanted):
        raise UserError(f"split: {len(sizes)} groups are too few for {len(wanted) + 1} splits")
    assigned = np.full(len(sizes), _TRAIN)
    remaining = list(np.random.default_rng(seed).permutation(len(sizes)))
    for position, split in enumerate(wanted):
        held, filled = len(wanted) - position, 0
        while filled < counts[split] and len(remaining) > held:
            one = remaining.pop(0)
            assigned[one] = SPLITS.index(split)
            filled += sizes[one]
    return {split: chosen[assigned[group] == SPLITS.index(split)] for split in ("train", *wanted)}


def parse_names(values: NDArray[Any]) -> NDArray[np.int8]:
    """Return each sample's index into SPLITS for split names.

    Raises:
        UserError: A name is no split's.
    """
    import numpy as np

    names, index = np.unique(values, return_inverse=True)
    texts = [(name.decode() if isinstance(name, bytes) else str(name)).strip().lower() for name in names.tolist()]
    parsed = [_ALIASES.get(text, text) for text in texts]
    unknown = [text for text, name in zip(texts, parsed, strict=True) if name not in SPLITS]
    if unknown:
        raise UserError(f"split: names must be {', '.join(SPLITS)}, got {unknown[0]!r}")
    return np.array([SPLITS.index(name) for name in parsed], np.int8)[index]
