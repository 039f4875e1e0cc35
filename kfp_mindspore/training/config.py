"""TrainingConfig: `fit` options."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import ValidationError, suggest
from kfp_mindspore.settings import AUTO, DEVICES
from kfp_mindspore.tracking.trackers import TRACKERS
from kfp_mindspore.training.schedules import Schedule, build_schedule

if TYPE_CHECKING:
    Augment = Callable[..., Any]

DATA_PARALLEL = "data_parallel"
PARALLEL_MODES = (DATA_PARALLEL, "semi_auto_parallel", "auto_parallel")
EXPORT_CHECKS = ("free", "off")
PRECISIONS = ("float32", "float16", "bfloat16")
# mindspore.train.EarlyStopping and ReduceLROnPlateau arguments that a configuration may set.
EARLY_STOPPING = ("monitor", "min_delta", "patience", "mode", "baseline", "restore_best_weights", "verbose")
REDUCE_ON_PLATEAU = ("monitor", "factor", "patience", "mode", "min_delta", "cooldown", "min_lr", "verbose")

_COUNTS = (
    "epochs",
    "batch_size",
    "accumulate",
    "validation_epochs",
    "checkpoint_epochs",
    "checkpoint_steps",
    "keep_checkpoints",
)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """`fit` options, checked when built.

    Args:
        epochs: Total number of epochs, those before a resume included.
        batch_size: Samples per optimizer step, over all workers.
        seed: Seed for shuffling and augmentation, 0 to 2³² - 1.
        shuffle: Whether to shuffle arrays each epoch.
        drop_last: Whether array samples that do not fill the last batch are skipped in the epoch; the next epoch skips
            others. Otherwise the last batch is smaller, which compiles the step a second time.
        augment: Function (batch inputs, numpy Generator) → inputs with the same shapes and dtypes. The inputs are an
            array, or a dict of arrays by name for a network with several inputs. A function with three parameters,
            (inputs, target, Generator), returns both, such as `kfp_mindspore.training.detection.augment_boxes`.
        metrics: MindSpore metric names, such as ("accuracy",), or mindspore.train metrics by name, over the validation
            set. `output.metric` names the metric for one of several outputs.
        validation_epochs: Epochs between validations; the last epoch is always validated.
        checkpoint_dir: Checkpoint directory or URI (s3://, gs://); default KFP_MINDSPORE_CHECKPOINT_DIR, without which
            none are written.
        checkpoint_epochs: Epochs between checkpoints; the last epoch always has one.
        checkpoint_steps: Optimizer steps between further checkpoints within an epoch.
        keep_checkpoints: How many of the newest checkpoints to keep.
        output_dir: Directory for metrics.jsonl and the final `checkpoint`; default KFP_MINDSPORE_OUTPUT_DIR.
        schedule: Factor on the optimizer's learning rate by step: a name (constant, cosine, linear, polynomial,
            exponential, step), a Schedule or a dict with its fields.
        accumulate: Parts that each batch is computed in; their gradients are averaged, so that the result equals the
            whole batch's in about 1/accumulate of the activation memory.
        clip_norm: Largest L2 norm of all gradients together; larger gradients are scaled down to it.
        clip_value: Largest absolute value in a gradient.
        freeze: Patterns (fnmatch) for parameter names that are not trained, such as ("backbone.*",). Layers in front of
            which nothing is trained are not computed backwards.
        unfreeze: Epoch (from 1) → patterns for `freeze`d parameters that are trained from that epoch on.
        initial: Weights that the network starts with, unless the run is resumed: a checkpoint or model bundle, a file
            `.ckpt`, `.safetensors` or `.mindir`, or a URI (s3://, gs://). Parameters are matched by name and shape.
        initial_optional: Patterns for parameters that `initial` may lack or have in another shape, such as a new
            head's: the network keeps its own values of them. All others must fit.
        initial_strict: Whether `initial` must have every parameter; otherwise the network keeps its own values of the
            others, such as a new head's, and these are named. A file without any fitting parameter is refused.
        precision: float32, float16 (mixed, with dynamic loss scaling) or bfloat16 (mixed), where the device computes
            in it.
        deterministic: Whether a GPU or NPU repeats a run bit by bit, slower; a CPU does.
        device: Device to compute on: `auto`, CPU, GPU or Ascend. One that is not there is an error; `auto` takes what
            $KFP_MINDSPORE_DEVICE names, else what MindSpore finds.
        device_id: Number of the device among those that this process sees. [local rank, else 0]
        class_weights: Factor on a sample's loss by its label: one number per class, or "balanced" for samples /
            (classes · samples in the class).
        early_stopping: mindspore.train.EarlyStopping arguments, such as {"monitor": "accuracy", "patience": 5}.
        reduce_on_plateau: mindspore.train.ReduceLROnPlateau arguments.
        keep_best: Metric name; the weights from the epoch with its best value become the final ones.
        ema: Decay for an exponential moving average over the weights, such as 0.999. Validation and the final weights
            use the average; 0 disables it.
        train_step: Function (network with its loss, optimizer) → Cell that does one optimizer step on a batch and
            returns the loss, such as a subclass of mindspore.nn.TrainOneStepCell. It replaces the step options
            (accumulate, clip_norm, clip_value, freeze, ema, float16's loss scaling), and the reduction of gradients
            over several workers.
        parallel_mode: How several workers share the work: data_parallel, or MindSpore's semi_auto_parallel and
            auto_parallel, which divide the parameters too and need Ascend or GPU devices. In these a worker's
            parameters are slices: `fit` writes no checkpoints and metrics, mindspore.train.ModelCheckpoint does.
        parallel_options: Further mindspore.set_auto_parallel_context arguments, such as {"pipeline_stages": 2}.
        network_factory: `module:callable` that builds the network for export; by default its class.
        network_arguments: The callable's keyword arguments, JSON types.
        export_check: Batch that the network is to be exported with: `free` or a number. Before the first epoch `fit`
            exports it and refuses one that MindSpore cannot export, so that the export step does not fail after the
            training; `off` for a network that is not exported.
        trackers: Where rank 0 logs parameters and learning curves: `mlflow`, with the client's variables such as
            MLFLOW_TRACKING_URI, and `tensorboard`, files in the directory `tensorboard` beside the checkpoints. By
            default MLflow where MLFLOW_TRACKING_URI is set; () for none.
        verbose: Whether to print a line per epoch, the initial weights and the frozen layers.

    Raises:
        ValidationError: Fields have wrong types or values; the message names them all.
    """

    epochs: int = 10
    batch_size: int = 32
    seed: int = 42
    shuffle: bool = True
    drop_last: bool = True
    augment: Augment | None = None
    metrics: Mapping[str, Any] | Sequence[str] = ()
    validation_epochs: int = 1
    checkpoint_dir: Path | str | None = None
    checkpoint_epochs: int = 1
    checkpoint_steps: int | None = None
    keep_checkpoints: int = 3
    output_dir: Path | str | None = None
    schedule: Schedule | Mapping[str, Any] | str = "constant"
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    freeze: Sequence[str] = ()
    unfreeze: Mapping[int, Sequence[str]] = field(default_factory=dict)
    initial: Path | str | None = None
    initial_optional: Sequence[str] = ()
    initial_strict: bool = True
    precision: str = "float32"
    deterministic: bool = False
    device: str = AUTO
    device_id: int | None = None
    class_weights: Sequence[float] | str | None = None
    early_stopping: Mapping[str, Any] | None = None
    reduce_on_plateau: Mapping[str, Any] | None = None
    keep_best: str | None = None
    ema: float = 0.0
    train_step: Callable[[Any, Any], Any] | None = None
    parallel_mode: str = DATA_PARALLEL
    parallel_options: Mapping[str, Any] = field(default_factory=dict)
    network_factory: str | None = None
    network_arguments: Mapping[str, Any] = field(default_factory=dict)
    export_check: str | int = "free"
    trackers: Sequence[str] | None = None
    verbose: bool = True

    def __post_init__(self) -> None:
        errors = [*_check_numbers(self), *_check_names(self), *_check_step(self)]
        try:
            # Frozen: the field is replaced by its parsed form once.
            object.__setattr__(self, "schedule", build_schedule(self.schedule))
        except ValidationError as error:
            errors += error.errors
        else:
            if self.reduce_on_plateau is not None and not self.parsed_schedule.is_constant:
                errors.append("reduce_on_plateau: both it and the schedule set the learning rate; use one")
        if isinstance(self.metrics, str):
            object.__setattr__(self, "metrics", (self.metrics,))
        if isinstance(self.trackers, str):
            object.__setattr__(self, "trackers", (self.trackers,))
        errors += self._parse_unfreeze()
        if errors:
            raise ValidationError(errors, subject="TrainingConfig")

    @property
    def parsed_schedule(self) -> Schedule:
        """The schedule as an object."""
        return build_schedule(self.schedule)

    def replace(self, **changes: Any) -> TrainingConfig:
        """Return a copy with other values.

        Args:
            **changes: Fields; mypy checks them in a call of `dataclasses.replace` only.
        """
        return dataclasses.replace(self, **changes)

    def _parse_unfreeze(self) -> list[str]:
        """Convert `unfreeze` keys, which are text in JSON, to integers."""
        try:
            plan = {int(epoch): _to_patterns(patterns) for epoch, patterns in dict(self.unfreeze).items()}
        except (TypeError, ValueError):
            return [f"unfreeze: must be {{epoch: [patterns]}}, got {self.unfreeze!r}"]
        object.__setattr__(self, "unfreeze", plan)
        for name in ("freeze", "initial_optional"):
            object.__setattr__(self, name, _to_patterns(getattr(self, name)))
        if plan and min(plan) < 1:
            return [f"unfreeze: epochs must be at least 1, got {min(plan)}"]
        return ["unfreeze: needs freeze, the patterns of frozen parameters"] if plan and not self.freeze else []


def _check_numbers(config: TrainingConfig) -> list[str]:
    errors = []
    for name in _COUNTS:
        value = getattr(config, name)
        if value is None and name == "checkpoint_steps":
            continue
        if not _is_integer(value):
            errors.append(f"{name}: must be an integer, got {value!r} ({type(value).__name__})")
        elif value < 1:
            errors.append(f"{name}: must be at least 1, got {value}")
    if not _is_integer(config.seed) or not 0 <= config.seed < 2**32:
        errors.append(f"seed: must be an integer from 0 to 2³² - 1, got {config.seed!r}")
    for name in ("clip_norm", "clip_value"):
        value = getattr(config, name)
        if value is not None and not (_is_number(value) and value > 0):
            errors.append(f"{name}: must be a number above 0, got {value!r}")
    if not (_is_number(config.ema) and 0 <= config.ema < 1):
        errors.append(f"ema: must be a number from 0 to below 1, got {config.ema!r}")
    if config.device_id is not None and not (_is_integer(config.device_id) and config.device_id >= 0):
        errors.append(f"device_id: must be an integer of at least 0, got {config.device_id!r}")
    for name in ("shuffle", "drop_last", "initial_strict", "verbose", "deterministic"):
        if not isinstance(getattr(config, name), bool):
            errors.append(f"{name}: must be True or False, got {getattr(config, name)!r}")
    weights = config.class_weights
    if isinstance(weights, str):
        if weights != "balanced":
            errors.append(f"class_weights: must be numbers or 'balanced', got {weights!r}")
    elif weights is not None and not (len(weights) and all(_is_number(item) and item >= 0 for item in weights)):
        errors.append(f"class_weights: must be numbers of at least 0, one per class, got {weights!r}")
    return errors


def _check_names(config: TrainingConfig) -> list[str]:
    errors = []
    if config.precision not in PRECISIONS:
        errors.append(f"precision: unknown {config.precision!r}{suggest(str(config.precision), PRECISIONS)}")
    if config.device not in DEVICES:
        found = config.device
        errors.append(f"device: must be one of {', '.join(DEVICES)}, got {found!r}{suggest(str(found), DEVICES)}")
    if config.parallel_mode not in PARALLEL_MODES:
        found = config.parallel_mode
        errors.append(f"parallel_mode: unknown {found!r}{suggest(str(found), PARALLEL_MODES)}")
    batch = config.export_check
    if batch not in EXPORT_CHECKS and not (_is_integer(batch) and int(batch) > 0):
        errors.append(f"export_check: must be {' or '.join(EXPORT_CHECKS)} or a batch of at least 1, got {batch!r}")
    for name in config.trackers or ():
        if name not in TRACKERS:
            errors.append(f"trackers: unknown {name!r}{suggest(str(name), TRACKERS)}")
    options: Any = config.parallel_options
    if not isinstance(options, Mapping):
        errors.append(f"parallel_options: must be a dict of arguments, got {options!r}")
    for name, known in (("early_stopping", EARLY_STOPPING), ("reduce_on_plateau", REDUCE_ON_PLATEAU)):
        given = getattr(config, name)
        if given is None:
            continue
        if not isinstance(given, Mapping):
            errors.append(f"{name}: must be a dict of arguments such as {{'patience': 5}}, got {given!r}")
            continue
        errors += [f"{name}.{key}: unknown{suggest(key, known)}" for key in given if key not in known]
    for name in ("augment", "train_step"):
        given = getattr(config, name)
        if given is not None and not callable(given):
            errors.append(f"{name}: must be a function, got {type(given).__name__}")
    for name in ("checkpoint_dir", "initial", "output_dir"):
        given = getattr(config, name)
        if given is not None and not isinstance(given, (str, Path)):
            errors.append(f"{name}: must be a path, got {type(given).__name__}")
    metrics: Any = config.metrics
    if not isinstance(metrics, (Mapping, str, Sequence, set, frozenset)):
        errors.append(f"metrics: must be names or mindspore.train metrics by name, got {type(metrics).__name__}")
    return errors


def _check_step(config: TrainingConfig) -> list[str]:
    """Return the options that exclude each other."""
    errors = []
    if config.train_step is not None:
        options = {
            "accumulate": config.accumulate != 1,
            "clip_norm": config.clip_norm is not None,
            "clip_value": config.clip_value is not None,
            "freeze": bool(config.freeze),
            "ema": bool(config.ema),
            "precision": config.precision == "float16",
        }
        errors += [f"{name}: has no effect on a train_step of your own" for name, is_set in options.items() if is_set]
    if config.parallel_mode == DATA_PARALLEL and config.parallel_options:
        errors.append("parallel_options: has no effect on parallel_mode data_parallel")
    if config.parallel_mode != DATA_PARALLEL and config.accumulate != 1:
        errors.append(f"accumulate: has no effect on parallel_mode {config.parallel_mode}; use nn.PipelineCell")
    if config.ema and (config.early_stopping or {}).get("restore_best_weights"):
        errors.append("early_stopping.restore_best_weights: restores weights without the average; use keep_best")
    return errors


def _to_patterns(given: Any) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError
    return patterns


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
