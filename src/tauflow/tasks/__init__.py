"""Tasks: data, what a sample is, and how good it is."""

from tauflow.tasks.base import SampleMean, Task
from tauflow.tasks.countdown import Countdown
from tauflow.tasks.text import Text

__all__ = ["Countdown", "SampleMean", "Task", "Text"]
