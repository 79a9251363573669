"""Start a run from the weights of a trained model: fine-tuning on other data.

The network, the source, the schedule, and what a sample is (tokenizer or vocabulary, length) come from the
model. Data, optimizer, steps, and evaluation are those of the run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tauflow.denoise import Model
from tauflow.errors import SettingsError
from tauflow.networks import NetworkConfig, TransformerConfig
from tauflow.networks.transformer import NEWER
from tauflow.process import SOURCES
from tauflow.tasks import Task
from tauflow.train.checkpoint import CLASSES, load, read
from tauflow.train.module import KEY, DFMModule, describe
from tauflow.train.resume import by_flag, show
from tauflow.untrusted import build, path_of


@dataclass(frozen=True)
class Start:
    """A trained model that a run starts from.

    Args:
        path: its file.
        model: the model, with averaged weights.
        step: optimizer steps of its weights.
        network: its network, source, and schedule, as a configuration has them.
        task: settings that say what its samples are.
        kind: class of its task.
    """

    path: Path
    model: Model
    step: int
    network: dict[str, Any]
    task: dict[str, Any]
    kind: type[Task] | None

    @classmethod
    def load(cls, path: Path, classes: Iterable[type]) -> "Start":
        """Read a checkpoint by the rules of `tauflow.load`: it may name our classes and `classes` only."""
        trained = load(path, classes=classes)
        arguments = read(path)[KEY]["model"]["init_args"]
        names = {path_of(kind): name for name, kind in SOURCES.items()}
        source = arguments["source"]["class_path"]
        config, schedule = (build(arguments[name], (*CLASSES, *classes)) for name in ("network", "schedule"))
        network = {
            "source": names.get(source, source),
            "network": describe_network(config),
            "schedule": describe(schedule),
        }
        kind = None if trained.task is None else type(trained.task)
        kept = () if kind is None else kind.sample_settings
        described = {} if kind is None else describe(trained.task)["init_args"]
        task = {name: value for name, value in described.items() if name in kept}
        return cls(path, trained.model, trained.step, network, task, kind)

    def config(self, class_path: str, kind: type[Task]) -> dict[str, Any]:
        """Return the configuration of a run that starts from it, for a task of some class."""
        return {"model": self.network, "data": {"class_path": class_path, "init_args": self._for(kind)}}

    def is_like(self, kind: type[Task]) -> bool:
        """Return whether the model's task is of this class, or of a related one."""
        return self.kind is not None and (issubclass(kind, self.kind) or issubclass(self.kind, kind))

    def _for(self, kind: type[Task]) -> dict[str, Any]:
        names = kind.sample_settings if self.is_like(kind) else ()
        return {name: value for name, value in self.task.items() if name in names}

    def give_weights(self, module: DFMModule, task: Task) -> None:
        """Give a module the weights; raise if flags ask for another network or other samples."""
        here = {"model.network": describe_network(module.network_config), "data": describe(task)["init_args"]}
        there = {"model.network": self.network["network"], "data": self._for(type(task))}
        before = by_flag(there)
        now = by_flag(here)
        wrong = [name for name in before if before[name] != now.get(name)]
        if wrong:
            said = "; ".join(
                f"{name}: {show(before[name])} there, {show(now.get(name))} here" for name in wrong
            )
            raise SettingsError(
                f"The settings must be those of {self.path}, which the run starts from ({said}). "
                f"Remove {' '.join(f'--{name}' for name in wrong)}, or --init_from."
            )
        try:
            module.load_weights(self.model)
        except SettingsError as error:
            different = self.describe_difference(type(task))
            raise SettingsError(f"--init_from {self.path}: {error}{different}") from None

    def describe_difference(self, kind: type[Task]) -> str:
        """Return that a run has another task than the model, for an error; "" if it has not."""
        if self.kind is None or self.is_like(kind):
            return ""
        return (
            f" The model's task is {self.kind.__name__}, that of the run {kind.__name__}. Choose another one "
            "with -c or --data.class_path."
        )

    def summary(self, kind: type[Task]) -> str:
        """Return where the model is, and what a run with a task of some class takes from it."""
        kept = [name for name, value in self._for(kind).items() if value is not None]
        return f"{self.path}, step {self.step}: its {', '.join(['weights', 'network', *kept])}"


def describe_network(config: NetworkConfig) -> dict[str, Any]:
    """Describe a network with all of its settings: a checkpoint omits those that it doesn't use."""
    described = describe(config)
    if isinstance(config, TransformerConfig):
        described["init_args"] = NEWER | described["init_args"]
    return described
