"""Models of the flow_matching package, and others that return probabilities."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def from_probabilities(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Adapt a model that returns probabilities, such as a ModelWrapper of flow_matching."""
    return with_parameters(model, lambda x, t: model(x=x, t=t).log())


def with_parameters(model: Any, function: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function with the model's parameters, so that its device is known."""
    if hasattr(model, "parameters"):
        function.parameters = model.parameters
    return function
