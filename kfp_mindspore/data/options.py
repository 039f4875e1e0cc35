"""Options for load_dataset, and their forms in command lines and component parameters."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from kfp_mindspore import options as declarations
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.dataset import STORAGES, TASKS, UNKNOWN_RULES, Dataset
from kfp_mindspore.formats.names import normalize_names
from kfp_mindspore.options import list_options, option

if TYPE_CHECKING:
    from kfp_mindspore.data.preprocessing import Given

ENGINES = ("memory", "ray")
# Without effect on a dataset directory, which is copied.
_SPLITTING = ("validation_fraction", "test_fraction", "seed")


@dataclass(frozen=True)
class DatasetOptions:
    """Options for load_dataset.

    Args:
        seed: Split seed, 0 to 2³² - 1. It decides too which samples `limit` keeps.
        validation_fraction: Fraction of all samples in the validation split, between 0 and 1.
        test_fraction: Fraction of all samples in the test split, between 0 and 1. A source with its own splits keeps
            them; splits that it lacks are taken from its training split.
        target: Target fields; default the field named target, label, labels or class.
        features: Feature fields; default all without another role.
        inputs: The network's inputs: one field each, or a list of fields to stack; default one input `features`. A
            single field keeps its dtype, a list is stacked in a float32 matrix. The default has all one-value fields in
            `features`, and each other field by itself.
        weight: The sample weights' field. Stored as float32.
        ids: Fields that identify a sample. A ranking's is `group`.
        task: Such as `classification`, `regression` or `language_model`; default guessed from the target. Others are
            `multi_label`, `ranking`, `detection` and `none`.
        split: `stratified`, `random`, `contiguous`, `time:FIELD`, `group:FIELD` or `column:FIELD`; default by the task.
            `stratified` for a classification, `contiguous` for a language model, else `random`. With `time` the latest
            samples are the test split, with `group` each group is in one split, and `column` has the names train,
            validation and test. A `time` of texts needs one format in all rows.
        time_format: The format of the texts in `split=time:FIELD`, such as `%d.%m.%Y`; default found. `strptime`'s
            directives. A column whose texts have two possible orders is refused without it.
        validation: The validation split's path or URI; default a fraction of the source.
        test: The test split's path or URI; default a fraction of the source.
        preprocessing: `standardize`, `imagenet`, `none`, or a JSON list of steps; default `standardize` for tables.
            `standardize` scales numbers to mean 0 and deviation 1, and encodes texts as one-hot vectors. `imagenet`
            reads image files as RGB and normalises them as pretrained networks need it. In Python a list with
            `kfp_mindspore.transform` steps or their declarations. Fitted on the training split.
        missing: Rule for missing values: `refuse`, `mean`, `median`, `drop` or a number. Mean and median are the
            training split's; `drop` removes the sample, or of a picture the boxes that are wrong.
        unknown: Rule for a request's category that the training split does not have: `ignore` or `refuse`. `ignore`
            answers it as no category, which the response names; `refuse` refuses the request. For all steps `OneHot`
            and `Vocabulary`; in a list each may have its own.
        storage: `npz`, `mindrecord`, or `parquet` for shards that training streams.
        texts: Fields that are texts although they look like numbers, such as postcodes with leading zeros.
        merge_labels: Join classes that differ in `blanks` around them, or in `case` too; default keep all apart.
        infinite: Rule for infinite numbers in features: `refuse`, or `missing` for the rule of missing values.
        delimiter: The character between two cells of a CSV file, or `tab`; default found. The comma, or tab, semicolon
            or vertical bar where it alone divides the first lines in as many cells as the header.
        format: Such as `csv`, `parquet`, `jsonl`, `npz`, `images`, `coco`, `yolo` or `voc`; default by the name. Others
            are `npy`, `idx`, `text` and `mindrecord`. `coco`, `yolo` and `voc` are pictures with boxes.
        length: Characters per window in a text file.
        image_size: Image height and width in a folder, or one number for both; default the most frequent size.
        limit: Samples to keep from the source, or from each split that it has; 0 for all. Taken at random before
            missing splits; for a stratified split with the same class shares.
        engine: `memory`, or `ray` for Parquet shards from data that need not fit in memory. `ray` splits by
            hashes, see `kfp_mindspore.ray.load_dataset`.
    """

    seed: int = option(42, minimum=0, maximum=2**32 - 1)
    validation_fraction: float = 0.15
    test_fraction: float = 0.2
    target: Sequence[str] = ()
    features: Sequence[str] | None = None
    inputs: Mapping[str, str | Sequence[str]] | None = None
    weight: str = ""
    ids: Sequence[str] = ()
    task: str = option("", enum=TASKS)
    split: str = ""
    time_format: str = ""
    validation: str = ""
    test: str = ""
    preprocessing: Given = ""
    missing: str | float = "refuse"
    unknown: str = option("ignore", enum=UNKNOWN_RULES)
    storage: str = option("npz", enum=STORAGES)
    texts: Sequence[str] = ()
    merge_labels: str = option("", enum=("", "blanks", "case"))
    infinite: str = option("refuse", enum=("refuse", "missing"))
    delimiter: str = ""
    format: str = ""
    length: int = option(64, minimum=1)
    image_size: Sequence[int] | None = None
    limit: int = option(0, minimum=0)
    engine: str = option("memory", enum=ENGINES)

    def __post_init__(self) -> None:
        if isinstance(self.target, str):
            object.__setattr__(self, "target", (self.target,) if self.target else ())
        for name in ("target", "features", "ids", "texts", "weight", "split", "inputs"):
            object.__setattr__(self, name, normalize_names(getattr(self, name)))

    def check(self) -> None:
        """Refuse options that fit no source.

        Raises:
            ValidationError: The message names the option.
        """
        from kfp_mindspore.data.columns import check_rule
        from kfp_mindspore.data.preprocessing import check_preprocessing
        from kfp_mindspore.data.sources.delimiters import check_delimiter
        from kfp_mindspore.data.split import check_fractions, parse_mode

        declarations.check_options(self, subject="load_dataset")
        check_fractions(self.validation_fraction, self.test_fraction)
        if self.split:
            parse_mode(self.split)
        check_rule(self.missing)
        check_delimiter(self.delimiter)
        if self.image_size and self.format not in ("", "images", "coco", "yolo", "voc"):
            raise ValidationError([f"image_size: is for images, the format is {self.format}"], subject="load_dataset")
        if self.time_format and self.split and not self.split.startswith("time:"):
            raise ValidationError(
                [f"time_format: is for split=time:FIELD, the split is {self.split}"], subject="load_dataset"
            )
        check_preprocessing(self.preprocessing)

    def check_copy(self, source: object, dataset: Dataset) -> None:
        """Refuse options that a dataset directory, which is copied, cannot have.

        Raises:
            UserError: The message names the option.
        """
        for entry in list_options(DatasetOptions):
            value = getattr(self, entry.name)
            is_same = entry.name == "storage" and value == dataset.storage
            if value and value != entry.default and not is_same and entry.name not in _SPLITTING:
                raise UserError(f"{source}: is a dataset directory, which is copied: {entry.name} cannot be changed")


class DatasetChanges(TypedDict, total=False):
    """Fields of `DatasetOptions` by keyword."""

    seed: int
    validation_fraction: float
    test_fraction: float
    target: str | Sequence[str]
    features: Sequence[str] | None
    inputs: Mapping[str, str | Sequence[str]] | None
    weight: str
    ids: Sequence[str]
    task: str
    split: str
    time_format: str
    validation: str
    test: str
    preprocessing: Given
    missing: str | float
    unknown: str
    storage: str
    texts: Sequence[str]
    merge_labels: str
    infinite: str
    delimiter: str
    format: str
    length: int
    image_size: Sequence[int] | None
    limit: int
    engine: str


def join_sources(source: str | Mapping[str, str], options: DatasetOptions) -> str | Mapping[str, str]:
    """Return the source, or the sources by split when the options have a validation or test source."""
    given = {split: uri for split in ("validation", "test") if (uri := getattr(options, split))}
    if given and not isinstance(source, str):
        raise ValidationError([f"{next(iter(given))}: is already a key of source"], subject="load_dataset")
    return {"train": str(source), **given} if given else source


def parse_texts(options: DatasetOptions) -> DatasetOptions:
    """Convert the values that command lines and component parameters have as texts, or as empty lists for None.

    Raises:
        ValidationError: `preprocessing` begins like JSON and is invalid, or is no list.
    """
    # A pipeline parameter inside a list arrives as text, an integer as 64.0.
    size = tuple(int(float(side)) for side in options.image_size or ())
    return dataclasses.replace(
        options,
        features=options.features or None,
        inputs=options.inputs or None,
        image_size=(size[0], size[-1]) if size else None,
        preprocessing=_parse_preprocessing(options.preprocessing),
        missing=_parse_missing(options.missing),
    )


def _parse_preprocessing(given: Given) -> Given:
    if not isinstance(given, str) or not given.lstrip().startswith(("[", "{")):
        return given
    try:
        steps = json.loads(given)
    except ValueError as error:
        raise ValidationError([f"preprocessing: not valid JSON ({error})"], subject="load_dataset") from None
    if isinstance(steps, dict):
        # A dataset's or bundle's declaration.
        steps = steps.get("pre")
    if not isinstance(steps, list):
        raise ValidationError([f"preprocessing: must be a list of steps, got {given:.80}"], subject="load_dataset")
    return steps


def _parse_missing(rule: Any) -> str | float:
    try:
        return float(rule)
    except ValueError:
        return str(rule)
