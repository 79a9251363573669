"""Training with conditions, from plain data loaders, and from the marginal source."""

import math

import pytest
import torch
from lightning.pytorch import Trainer
from tiny_training import NETWORK, TRAINER, Plain, module, perturbed, validate
from torch.utils.data import DataLoader

import tauflow
from tauflow.denoise import DROPPED
from tauflow.errors import SettingsError
from tauflow.tasks import Countdown, DataFacts, LabelledCountdown
from tauflow.tasks.data import GlobalBatches, Numbered, TaskData
from tauflow.tasks.task import Share, Shuffled
from tauflow.train import DFMModule
from tauflow.train.bound import batch_condition, batch_tokens, check_values
from tauflow.train.checkpoint import AtomicCheckpointIO


def labelled(**options) -> LabelledCountdown:
    return LabelledCountdown(
        **({"length": 16, "values": 6, "batch_size": 8, "epoch_items": 32, "val_items": 12} | options)
    )


def fit(model: DFMModule, data, steps: int = 6, **options) -> Trainer:
    trainer = Trainer(max_steps=steps, **(TRAINER | {"use_distributed_sampler": False} | options))
    trainer.fit(model, data) if isinstance(data, TaskData) else trainer.fit(model, *data)
    return trainer


class Seen(DFMModule):
    """Notes what the loss is taken of."""

    def loss(self, x_1, noise, rows, condition=None):
        self.seen.append((rows, condition))
        return super().loss(x_1, noise, rows, condition)


def conditions_in_training(accumulate: int = 1, **options) -> torch.Tensor:
    """The condition of every item in the order of positions, as the network got it in training."""
    task = labelled()
    torch.manual_seed(0)
    model = Seen(task.facts, network=NETWORK, **options)
    model.seen = []
    fit(model, TaskData(task), accumulate_grad_batches=accumulate)
    steps = [model.seen[i : i + accumulate] for i in range(0, len(model.seen), accumulate)]
    return torch.cat(
        [torch.cat([c for _, c in step])[torch.cat([r for r, _ in step]).argsort()] for step in steps]
    )


def test_conditions_are_dropped_at_random_the_same_however_the_batch_is_split():
    """48 items: half of them dropped, 24 +- 14 (4 sigma); the rest keep theirs."""
    kept = conditions_in_training(condition_dropout=0.0)
    task = labelled()
    task.setup()
    assert torch.equal(
        kept, torch.stack([item["condition"] for item in task.train_data.__getitems__(range(48))])
    )
    dropped = conditions_in_training(condition_dropout=0.5)
    lost = (dropped == DROPPED).all(1)
    assert 10 <= lost.sum() <= 38
    assert torch.equal(dropped[~lost], kept[~lost])
    assert torch.equal(conditions_in_training(accumulate=2, condition_dropout=0.5), dropped)
    assert not torch.equal(conditions_in_training(condition_dropout=0.5, seed=1), dropped)


def test_a_dropped_condition_loses_all_its_columns():
    model = module(DataFacts(6, (16,), (3, 2)), condition_dropout=0.5)
    assert model.dropped(3, 8).shape == (8,)
    assert torch.equal(
        model.dropped(3, 8), module(DataFacts(6, (16,), (3, 2)), condition_dropout=0.5).dropped(3, 8)
    )
    assert not torch.equal(model.dropped(3, 64), model.dropped(4, 64))


def test_validation_uses_the_conditions_undropped():
    """The bound knows the label: other labels give another bound, and dropout makes no difference."""
    bounds = []
    for dropout, shift in ((0.1, 0), (0.9, 0), (0.1, 1)):
        task = labelled()
        model = perturbed(task.facts, condition_dropout=dropout)
        model.ema.network.load_state_dict(model.network.state_dict())
        task.setup = lambda stage=None, task=task, shift=shift: relabelled(task, shift)
        bounds.append(validate(model, task)["val/bound"])
    assert bounds[0] == bounds[1]
    assert bounds[0] != bounds[2]


def relabelled(task: LabelledCountdown, shift: int) -> None:
    type(task).setup(task)
    items = task.val_data.__getitems__(range(12))
    task.val_data = [item | {"condition": (item["condition"] + shift) % 3} for item in items]


def test_training_without_conditions_draws_nothing_for_them():
    """The dropout of data without conditions changes no bit of the run."""
    weights = []
    for dropout in (0.0, 0.9):
        model = module(condition_dropout=dropout)
        fit(
            model,
            TaskData(Countdown(length=16, values=6, batch_size=8, epoch_items=32, val_items=4)),
            steps=3,
        )
        weights.append(model.network.output.weight.detach().clone())
    assert torch.equal(*weights)


def test_a_run_with_conditions_is_saved_loaded_and_guided(tmp_path):
    task = labelled()
    model = module(task.facts)
    trainer = fit(model, TaskData(task), plugins=[AtomicCheckpointIO()], default_root_dir=tmp_path)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trained = tauflow.load(tmp_path / "a.ckpt")
    assert trained.model.conditions == (3,)
    assert isinstance(trained.task, LabelledCountdown)
    asked = trained.task.sample_conditions(4)
    result = tauflow.sample(trained.model.guided(2.0), "euler", 4, count=4, condition=asked)
    assert (result.nfe, result.info.forwards) == (4, 8)


def test_what_does_not_fit_is_refused():
    facts, given = DataFacts(6, (4, 4), (3,)), {"tokens": torch.zeros(2, 4, 4, dtype=torch.int32)}
    assert batch_tokens(given, facts).shape == (2, 16)
    assert batch_tokens(given, facts).dtype == torch.long
    label = torch.zeros(2, 1, dtype=torch.long)
    for batch, wanted, message in (
        (torch.zeros(2, 16), facts, "A batch must be a dict"),
        (
            {"tokens": torch.zeros(2, 15)},
            facts,
            r"made for shape \(4, 4\) of 6 tokens, conditions \(3,\), got tokens of shape \(2, 15\)",
        ),
        (given, facts, "1 columns that the model is made for, got none"),
        (given | {"condition": label}, DataFacts(6, (16,)), r"0 columns .*, got shape \(2, 1\)"),
        (given | {"condition": label.flatten()}, facts, r"1 columns .*, got shape \(2,\)"),
    ):
        with pytest.raises(SettingsError, match=message):
            _ = batch_tokens(batch, wanted), batch_condition(batch, wanted)
    with pytest.raises(SettingsError, match=r"conditions \(3,\), but the network of Plain takes none"):
        DFMModule(facts, network=Plain())
    with pytest.raises(ValueError, match="condition_dropout must be in"):
        module(condition_dropout=1.0)


def test_a_network_without_conditions_trains():
    model = DFMModule(DataFacts(6, (16,)), network=Plain())
    fit(model, TaskData(Countdown(length=16, values=6, batch_size=8, epoch_items=32, val_items=4)), steps=2)
    assert model.model().conditions == ()


# Plain data loaders


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_plain_loader_trains_the_same_model_where_positions_agree(accumulate):
    """Tokens alone, in the order of positions: the same noise, weights and bound, bit for bit."""
    results = []
    for plain in (False, True):
        task = Countdown(length=16, values=6, batch_size=8, epoch_items=32, val_items=10)
        task.setup()
        # an epoch, and again: positions continue, items do not
        items = task.train_data.__getitems__(range(32))
        task.train_data = Looped(items)
        model = module()
        loaders = (DataLoader(items, 8 // accumulate), DataLoader(task.val_data, 4))
        task.setup = lambda stage=None: None
        trainer = fit(
            model, loaders if plain else TaskData(task), steps=6, accumulate_grad_batches=accumulate
        )
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        results.append((model.state_dict(), metrics))
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-6)  # validated in other batches
    for name, value in results[0][0].items():
        assert torch.equal(value, results[1][0][name]), name


class Looped:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return 2**62

    def __getitem__(self, position):
        return self.items[position % len(self.items)]


def test_a_checkpoint_without_a_task_loads(tmp_path):
    tokens = [{"tokens": torch.arange(16).view(4, 4) % 6} for _ in range(16)]
    model = module(DataFacts(6, (4, 4)))
    trainer = fit(model, (DataLoader(tokens, 8), DataLoader(tokens, 5)), plugins=[AtomicCheckpointIO()])
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trained = tauflow.load(tmp_path / "a.ckpt")
    assert trained.task is None
    assert trained.model.shape == (4, 4)
    assert tauflow.sample(trained.model, "spaced", 4, count=2).tokens.shape == (2, 16)


# Items and positions


def test_batches_of_all_splits_are_the_same_items():
    """Steps 1 and 2 of a run with 2 steps an epoch: resumed at step 1, the epoch ends after it."""

    def positions(accumulate, world_size):
        found = []
        for rank in range(world_size):
            share = Share(8, 2, accumulate, rank, world_size, step=lambda: 1)
            batches = list(GlobalBatches(share))
            assert len(batches) == accumulate
            assert len(GlobalBatches(share)) == 2 * accumulate
            found += [position for batch in batches for position in batch]
        return sorted(found)

    for accumulate, world_size in ((1, 1), (2, 1), (1, 2), (2, 2)):
        assert positions(accumulate, world_size) == list(range(8, 16))


def test_finite_data_can_be_shuffled_without_end():
    items = [{"tokens": torch.tensor([number])} for number in range(10)]
    shuffled = Shuffled(items, seed=3)
    passes = [[int(shuffled[position]["tokens"]) for position in range(k, k + 10)] for k in (0, 10)]
    assert [sorted(each) for each in passes] == [list(range(10))] * 2
    assert passes[0] != passes[1]
    assert int(Shuffled(items, seed=3)[17]["tokens"]) == passes[1][7]
    assert Numbered(shuffled, "position")[12]["position"] == 12
    with pytest.raises(SettingsError, match=r"asks for item 10, the data has 10; make train_data endless"):
        Numbered(items, "position").__getitems__([9, 10])


# The marginal source


def test_the_marginal_source_trains_validates_and_comes_back(tmp_path):
    task = Countdown(length=16, values=6, batch_size=8, epoch_items=32, val_items=64)
    model = module(task.facts, source="marginal")
    assert torch.equal(model.source.distribution, task.unigrams())
    trainer = fit(model, TaskData(task), plugins=[AtomicCheckpointIO()])
    assert math.isfinite(trainer.callback_metrics["val/bound"])
    assert model.loss_on == "all"
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trained = tauflow.load(tmp_path / "a.ckpt")
    assert (
        trained.model.process
        == model.process
        == tauflow.Mixture(tauflow.Marginal(task.unigrams()), "quadratic")
    )
    assert tauflow.sample(trained.model, "auto", 4, count=2).tokens.max() < 6


def test_the_marginal_source_needs_the_law_of_the_data():
    with pytest.raises(SettingsError, match="needs the unigram distribution"):
        DFMModule(DataFacts(6, (16,)), source="marginal")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"tokens": torch.rand(2, 4)}, "tokens of a batch must be whole numbers"),
        (
            {"tokens": torch.full((2, 4), 6)},
            r"tokens of a batch must be whole numbers in 0 \.\. 5, got torch.int64 from 6 to 6\. Count",
        ),
        (
            {"tokens": torch.zeros(2, 4).long(), "condition": torch.tensor([[1], [2]])},
            r"must be whole numbers in -1 \.\. 1",
        ),
        ({"tokens": torch.zeros(2, 4).long(), "condition": torch.rand(2, 1)}, "must be whole numbers"),
    ],
)
def test_values_of_a_batch_that_do_not_fit_are_refused(batch, message):
    """A label that is too large by one would otherwise train as a dropped one."""
    facts = DataFacts(6, (4,), (2,) if "condition" in batch else ())
    with pytest.raises(SettingsError, match=message):
        check_values(batch, facts)


def test_training_refuses_such_a_batch(tmp_path):
    items = [{"tokens": torch.zeros(4).long(), "condition": torch.tensor([2])}] * 4
    own = DFMModule(DataFacts(6, (4,), (2,)), network=NETWORK)
    with pytest.raises(SettingsError, match="column 0 of the condition of a batch must be whole"):
        Trainer(max_steps=1, default_root_dir=tmp_path, **TRAINER).fit(own, DataLoader(items, batch_size=2))
