"""`@msjob_component` without arguments."""

from kfp import dsl

from kfp_mindspore.dsl import msjob_component


@msjob_component
def count(numbers: int = 3) -> int:
    """Count to a number.

    Args:
        numbers: Upper limit.
    """
    return sum(1 for _ in range(numbers))


@dsl.pipeline(name="component-bare")
def golden(numbers: int = 5):
    count(numbers=numbers)
