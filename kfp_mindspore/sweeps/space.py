"""A sweep's parameters and their values."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from kfp_mindspore.errors import UserError, ValidationError, suggest
from kfp_mindspore.options import check_options, get_module, option, resolve_type

if TYPE_CHECKING:
    from optuna.trial import Trial

_KEYS = ("low", "high", "step", "log", "choices", "when", "default")


@dataclass(frozen=True)
class Parameter:
    """One parameter in a space: choices, or a range.

    Args:
        low: Least value of a range. Two integers are a range of integers.
        high: A range's greatest value, included.
        step: Distance between a range's values; 1 for integers without one.
        log: Whether the range is logarithmic.
        choices: The values, JSON types.
        when: Values of other parameters with which it is used, such as {"optimizer": "Momentum"} or
            {"optimizer": ["Momentum", "SGD"]}.
        default: Its value in the first trial; by default the sampler chooses that too.
    """

    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    choices: list[Any] | None = None
    when: Mapping[str, Any] = option({})
    default: Any = None

    def __post_init__(self) -> None:
        check_options(self)

    def list_errors(self, name: str) -> list[str]:
        """Return one sentence for each violation."""
        low, high = self.low, self.high
        if self.choices is not None:
            if low is not None or high is not None:
                return [f"{name}: must have either choices, or low and high"]
            # What Optuna stores.
            wrong = [choice for choice in self.choices if not isinstance(choice, (bool, int, float, str, type(None)))]
            if wrong:
                return [f"{name}.choices: must be numbers, texts, true, false or null, got {wrong[0]!r}"]
            if not self.choices:
                return [f"{name}.choices: must not be empty"]
            if self.default is not None and self.default not in self.choices:
                return [f"{name}: its default {self.default!r} is none of its choices {self.choices}"]
            return []
        if low is None or high is None:
            return [f"{name}: must have choices, or low and high"]
        if not (math.isfinite(low) and math.isfinite(high)):
            return [f"{name}: low and high must be finite numbers, got {low:g} and {high:g}"]
        if low >= high:
            return [f"{name}: low must be below high, got {low:g} and {high:g}"]
        if self.log and low <= 0:
            return [f"{name}: a logarithmic range must be above 0, got {low:g}"]
        if self.log and self.step is not None:
            return [f"{name}: a logarithmic range has no step"]
        if self.step is not None and not 0 < self.step <= high - low:
            return [f"{name}.step: must be above 0 and at most {high - low:g}, got {self.step:g}"]
        if self.default is not None and not self._contains(self.default):
            step = f" in steps of {self.step:g}" if self.step else ""
            return [f"{name}: its default {self.default!r} is outside its range {low:g} to {high:g}{step}"]
        return []

    def _contains(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.is_integer else (int, float)):
            return False
        low, high = self.low or 0, self.high or 0
        steps = (value - low) / (self.step or 1)
        return low <= value <= high and (self.step is None or abs(steps - round(steps)) < 1e-9)

    def is_used(self, chosen: Mapping[str, Any]) -> bool:
        """Return whether the other parameters' values fulfil `when`."""
        return all(
            name in chosen and chosen[name] in (value if isinstance(value, list) else [value])
            for name, value in self.when.items()
        )

    @property
    def is_integer(self) -> bool:
        """Whether a range has integers only."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))


class Space:
    """A sweep's parameters by name.

    Args:
        parameters: Each parameter as a list of choices, or as a dict with `Parameter` fields, such as
            {"learning_rate": {"low": 1e-4, "high": 0.1, "log": True}, "batch_size": [16, 32]}; or a dataclass, see
            `read_declaration`.
        known: Names that the training accepts; None if they are not known.

    Raises:
        ValidationError: The message names each wrong parameter.
    """

    def __init__(self, parameters: Mapping[str, Any] | type[Any], known: Collection[str] | None = None) -> None:
        if isinstance(parameters, type):
            parameters = read_declaration(parameters)
        errors: list[str] = [] if parameters else ["space: must have at least one parameter"]
        self.parameters: dict[str, Parameter] = {}
        for name, given in parameters.items():
            if known is not None and name not in known:
                errors.append(f"{name}: the training has no such parameter{suggest(name, known)}")
                continue
            fields = {"choices": list(given)} if isinstance(given, (list, tuple)) else given
            if not isinstance(fields, Mapping):
                errors.append(f"{name}: must be a list of choices, or low and high, got {given!r}")
                continue
            if unknown := [key for key in fields if key not in _KEYS]:
                errors.append(f"{name}: unknown {', '.join(unknown)}; a parameter has {', '.join(_KEYS)}")
                continue
            try:
                parameter = Parameter(**fields)
            except ValidationError as error:
                errors += [f"{name}.{message}" for message in error.errors]
                continue
            errors += parameter.list_errors(name)
            errors += [
                f"{name}.when: {other!r} is no parameter before it"
                for other in parameter.when
                if other not in self.parameters
            ]
            self.parameters[name] = parameter
        if errors:
            raise ValidationError(errors, subject="space")

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON types."""
        empty = Parameter()
        return {
            name: {key: value for key, value in vars(parameter).items() if value != getattr(empty, key)}
            for name, parameter in self.parameters.items()
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """The first trial's values, for the parameters that have a default."""
        found = {name: parameter.default for name, parameter in self.parameters.items()}
        return {name: value for name, value in found.items() if value is not None}

    def list_grid(self) -> list[dict[str, Any]]:
        """Return all combinations of choices.

        Raises:
            UserError: A parameter has a range.
        """
        if ranges := [name for name, parameter in self.parameters.items() if parameter.choices is None]:
            raise UserError(
                f"sampler: grid needs choices, and {', '.join(ranges)} has a range", hint="List its values, or use tpe."
            )
        grid: list[dict[str, Any]] = [{}]
        for name, parameter in self.parameters.items():
            grid = [
                {**chosen, name: value} if parameter.is_used(chosen) else chosen
                for chosen in grid
                for value in (parameter.choices if parameter.is_used(chosen) else [None]) or ()
            ]
        return grid

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Return the parameters that the sampler chooses for a trial, without those whose `when` is not fulfilled."""
        chosen: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if not parameter.is_used(chosen):
                continue
            if parameter.choices is not None:
                chosen[name] = trial.suggest_categorical(name, parameter.choices)
                continue
            suggest = trial.suggest_int if parameter.is_integer else trial.suggest_float
            step = (parameter.step or 1) if parameter.is_integer else parameter.step
            chosen[name] = suggest(name, parameter.low, parameter.high, step=step, log=parameter.log)
        return chosen


def read_declaration(declaration: Any) -> dict[str, Any]:
    """Return the parameters that a dataclass declares, such as a script's options or a subclass of TrainingConfig.

    A field `Annotated[float, Parameter(1e-4, 0.1, log=True)]` has a range, a field with a `Literal` or an enum has its
    values as choices, and other fields are no parameters. The fields' defaults are the first trial's values.

    Args:
        declaration: The dataclass.

    Raises:
        ValidationError: It is no dataclass, no field has a range or choices, or an integer field's range has fractions.
    """
    name = getattr(declaration, "__name__", repr(declaration))
    if not isinstance(declaration, type) or not dataclasses.is_dataclass(declaration):
        raise ValidationError([f"{name}: must be a dataclass"], subject="space")
    found: dict[str, Any] = {}
    for field in dataclasses.fields(declaration):
        hint = resolve_type(field.type, get_module(declaration, field.name), include_extras=True)
        default = None if field.default is dataclasses.MISSING else field.default
        arguments = typing.get_args(hint)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            parameter = Parameter(choices=[member.value for member in hint])
            default = default.value if isinstance(default, enum.Enum) else default
        elif typing.get_origin(hint) is typing.Literal:
            parameter = Parameter(choices=list(arguments))
        else:
            declared = [item for item in arguments[1:] if isinstance(item, Parameter)]
            if not declared:
                continue
            parameter = declared[0]
            if arguments[0] is int and parameter.choices is None and not parameter.is_integer:
                raise ValidationError([f"{field.name}: is an int, so its range must have integers"], subject="space")
            if arguments[0] is float and parameter.choices is None and parameter.low is not None:
                parameter = dataclasses.replace(parameter, low=float(parameter.low))
        values = vars(parameter if default is None else dataclasses.replace(parameter, default=default))
        found[field.name] = {key: value for key, value in values.items() if value != getattr(Parameter(), key)}
    if not found:
        raise ValidationError(
            [f"{name}: no field has a range or choices"],
            subject="space",
            hint="Declare it as Annotated[float, Parameter(1e-4, 0.1, log=True)] or Literal['Adam', 'SGD'].",
        )
    return found


def parse_space(text: str, source: str) -> dict[str, Any]:
    """Parse a space that is written as YAML or JSON.

    Args:
        text: The text. `1e-4`, a text in YAML 1.1, is a number.
        source: Where it comes from, for messages.

    Raises:
        UserError: It is no YAML, or no mapping.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{source}: is no YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(found, dict):
        raise UserError(f"{source}: must map parameters to values, got {type(found).__name__}")
    return {str(name): _parse_numbers(value) for name, value in found.items()}


def _parse_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_parse_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _parse_numbers(item) for key, item in value.items()}
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value)
    return float(value) if is_number else value
