"""Tasks: data, what a sample is, and how good it is."""

from tauflow.tasks.countdown import Countdown, LabelledCountdown
from tauflow.tasks.images import Images
from tauflow.tasks.metrics import ConditionalSampleMean, SampleMean, SampleMetric, UnigramTotalVariation
from tauflow.tasks.molecules import Molecules
from tauflow.tasks.scenes import Scenes
from tauflow.tasks.sequences import Sequences
from tauflow.tasks.task import DataFacts, Shuffled, Task, TextTask
from tauflow.tasks.text import Text

__all__ = [
    "ConditionalSampleMean",
    "Countdown",
    "DataFacts",
    "Images",
    "LabelledCountdown",
    "Molecules",
    "SampleMean",
    "SampleMetric",
    "Scenes",
    "Sequences",
    "Shuffled",
    "Task",
    "Text",
    "TextTask",
    "UnigramTotalVariation",
]
