"""The module on its own and through real training: loss, EMA, overfitting, the guard."""

import dataclasses
import math

import pytest
import torch
from conftest import TINY, load_plain, read_scalars, run_train
from lightning.pytorch import Trainer
from tiny_training import NETWORK, TRAINER, Plain, module, perturbed, validate

import tauflow
from tauflow.errors import NonFiniteLoss, SettingsError
from tauflow.networks import TransformerConfig
from tauflow.process import stratified_times
from tauflow.tasks import Countdown
from tauflow.tasks.data import TaskData
from tauflow.train import DFMModule, OptimizerConfig


def loss_and_gradient(model: DFMModule, x_1, noise, parts: list[torch.Tensor]):
    model.zero_grad()
    losses = [model.loss(x_1[rows], noise, rows) for rows in parts]
    sum(losses).backward()
    return sum(losses).item(), torch.cat([p.grad.flatten() for p in model.network.parameters()])


@pytest.mark.parametrize("source", ["masked", "uniform"])
@pytest.mark.parametrize("loss_on", ["corrupted", "all"])
def test_loss_and_gradient_do_not_depend_on_the_split(source, loss_on):
    model = perturbed(source=source, loss_on=loss_on).double()
    x_1, noise = (
        torch.randint(6, (8, 16), generator=torch.Generator().manual_seed(3)),
        model.training_noise(step=5, batch_size=8),
    )
    whole = loss_and_gradient(model, x_1, noise, [torch.arange(8)])
    for parts in (torch.arange(8).view(2, 4), torch.arange(8).view(4, 2).T, torch.arange(8).view(8, 1)):
        loss, gradient = loss_and_gradient(model, x_1, noise, list(parts))
        assert loss == pytest.approx(whole[0], rel=1e-12)
        torch.testing.assert_close(gradient, whole[1], atol=1e-14, rtol=1e-10)


@pytest.mark.parametrize(("source", "expected"), [("masked", "corrupted"), ("uniform", "all")])
def test_loss_is_the_mean_cross_entropy_where_it_says(source, expected):
    model = perturbed(source=source)
    assert model.loss_on == expected
    x_1, noise = torch.randint(6, (8, 16)), model.training_noise(step=0, batch_size=8)
    logits = model.network(noise.corrupt(x_1), noise.t)
    by_hand = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x_1.flatten(), reduction="none").view(
        8, 16
    )
    by_hand = by_hand[noise.corrupted].mean() if expected == "corrupted" else by_hand.mean()
    torch.testing.assert_close(model.loss(x_1, noise, torch.arange(8)), by_hand)


@pytest.mark.parametrize("source", ["masked", "uniform"])
def test_the_loss_of_a_training_loop_is_that_of_the_module(source):
    model = perturbed(source=source)
    x_1 = torch.randint(6, (8, 16))
    generator = torch.Generator().manual_seed(3)
    times = stratified_times(8, generator)
    expected = model.loss(x_1, model.process.noise(times, 16, generator), torch.arange(8))
    for network in (model.network, lambda x, t: model.network(x, t)):
        loss = model.process.loss(network, x_1, torch.Generator().manual_seed(3))
        torch.testing.assert_close(loss, expected)
    loss = model.process.loss(model.network, x_1.view(8, 4, 4), torch.Generator().manual_seed(3))
    torch.testing.assert_close(loss, expected)


def test_first_loss_is_ln_v_exactly():
    for source in ("masked", "uniform"):
        model = module(source=source)
        loss = model.loss(torch.randint(6, (8, 16)), model.training_noise(0, 8), torch.arange(8))
        assert loss.item() == pytest.approx(math.log(6), rel=1e-6)


def test_corrupted_loss_on_a_uniform_source_warns():
    with pytest.warns(UserWarning, match="Use loss_on=all"):
        module(source="uniform", loss_on="corrupted")


def test_training_noise_is_a_function_of_seed_and_step():
    a, b = module(seed=1), module(seed=1)
    a.training_noise(3, 8)
    same = zip(vars(a.training_noise(4, 8)).values(), vars(b.training_noise(4, 8)).values(), strict=True)
    assert all(torch.equal(x, y) for x, y in same)
    assert not torch.equal(a.training_noise(4, 8).corrupted, a.training_noise(5, 8).corrupted)
    assert not torch.equal(a.training_noise(4, 8).corrupted, module(seed=2).training_noise(4, 8).corrupted)


@pytest.mark.parametrize("source", ["masked", "uniform"])
def test_overfits_a_fixed_batch(source):
    """Eight fixed sequences with fixed noise are learned by heart: a bug in conditioning, masking or the
    gradient would show.
    """
    model = module(source=source, network=TransformerConfig(width=64, blocks=2, heads=2))
    x_1, noise = (
        torch.randint(6, (8, 16), generator=torch.Generator().manual_seed(1)),
        model.training_noise(0, 8),
    )
    # something to tell them apart
    later, rest = noise.t.clamp(min=0.2), noise.corrupted & (torch.arange(16) > 3)
    noise = dataclasses.replace(noise, t=later, corrupted=rest)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        loss = model.loss(x_1, noise, torch.arange(8))
        loss.backward()
        optimizer.step()
    assert loss < 0.05


def test_logged_values_of_a_run(trained):
    scalars = read_scalars(trained)
    assert scalars["train/loss"][0] == (1, pytest.approx(math.log(6), rel=1e-6))
    assert [step for step, _ in scalars["train/loss"]] == list(range(1, 25))
    assert scalars["train/loss"][-1][1] < math.log(6) - 0.02
    assert [step for step, _ in scalars["val/bound"]] == [8, 16, 24]
    assert scalars["val/bound"][-1][1] < scalars["val/bound"][0][1]
    for tag in (
        "train/learning_rate",
        "train/gradient_norm",
        "train/tokens_per_second",
        "val/bound_standard_error",
    ):
        assert all(value > 0 for _, value in scalars[tag]), tag
    for quarter in (1, 2, 3, 4):
        assert len(scalars[f"val/loss_kappa_quarter_{quarter}"]) == 3


def test_bound_of_an_untrained_masked_model_is_ln_v():
    """All posteriors uniform: every masked coordinate pays ln V, so the bound is ln V up to the noise in the
    number of masks.
    """
    task, model = Countdown(length=16, values=6, val_items=256, batch_size=64), module()
    result = validate(model, task)
    assert abs(result["val/bound"] - math.log(6)) < 4 * result["val/bound_standard_error"]


def test_uniform_bound_does_not_grow_with_the_number_of_items():
    """Up to kappa = 1 the integral diverges for any finite logits; with the cutoff and the draw two sizes
    agree within their errors.
    """
    results = [
        validate(module(source="uniform"), Countdown(length=16, values=6, val_items=n, batch_size=128))
        for n in (128, 4096)
    ]
    error = math.hypot(*(result["val/bound_standard_error"] for result in results))
    assert abs(results[0]["val/bound"] - results[1]["val/bound"]) < 3 * error
    # all posteriors uniform: the integral over kappa in [0, c) of
    # [1 - 1/V - P(x_t != x_1) (1 - ln V)] / (1 - kappa), and ln V for the draw
    v, c = 6, 1 - 1e-3
    exact = (1 - 1 / v) * -math.log(1 - c) - (1 - 1 / v) * c * (1 - math.log(v)) + math.log(v)
    assert abs(results[1]["val/bound"] - exact) < 4 * results[1]["val/bound_standard_error"]


def test_validate_then_fit(tmp_path):
    """Nothing made under inference mode, where Lightning validates, stays around to break training."""
    task = Countdown(length=18, values=6, val_items=4, batch_size=8, epoch_items=16)
    model = module(task.facts)
    with torch.inference_mode():
        model.model().denoiser.evaluate(torch.zeros(1, 18, dtype=torch.long), torch.zeros(1))
    validate(model, task)
    trainer = Trainer(max_steps=2, **TRAINER)
    trainer.fit(model, TaskData(task))
    assert trainer.global_step == 2


def test_a_task_of_another_size_is_refused():
    with pytest.raises(
        ValueError, match=r"made for shape \(16,\) of 6 tokens, the task has shape \(12,\) of 6"
    ):
        validate(module(), Countdown(length=12, values=6))


def test_batches_can_be_looked_at_without_a_trainer():
    task = Countdown(length=16, values=6, batch_size=8)
    task.setup()
    batch = next(iter(TaskData(task).train_dataloader()))
    assert batch["tokens"].shape == (8, 16)
    assert batch["position"].tolist() == list(range(8))


def test_validation_does_not_depend_on_batches_and_leaves_the_global_rng_alone():
    results = []
    for batch_size in (64, 7):
        task, model = Countdown(length=16, values=6, val_items=50, batch_size=batch_size), perturbed()
        model.ema.network.load_state_dict(model.network.state_dict())
        torch.manual_seed(5)
        before = torch.get_rng_state()
        results.append(validate(model, task))
        assert torch.equal(before, torch.get_rng_state())
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_ema_is_what_validation_and_reloading_use(trained):
    checkpoint = load_plain(trained / "last.ckpt")
    weights = checkpoint["state_dict"]
    raw, averaged = weights["network.output.weight"], weights["ema.network.output.weight"]
    assert not torch.equal(raw, averaged)

    run = tauflow.load(trained / "last.ckpt")
    assert torch.equal(run.model.denoiser.network.output.weight, averaged)
    assert (run.step, run.task.length, run.model.shape) == (24, 16, (16,))
    assert run.model.process == tauflow.Mixture(tauflow.Masked(6), "quadratic")

    logged = dict(read_scalars(trained)["val/bound"])[24]
    bounds = {}
    for name in ("network.", "ema.network."):
        model = DFMModule(run.task.facts, network=run.model.denoiser.network.config)
        model.ema.network.load_state_dict(
            {k.removeprefix(name): v for k, v in weights.items() if k.startswith(name)}
        )
        bounds[name] = validate(model, run.task)["val/bound"]
    assert bounds["ema.network."] == pytest.approx(logged, rel=1e-5)
    assert abs(bounds["network."] - logged) > 1e-4


def test_ema_update_by_hand():
    """Step 1 averages with decay 2/11, later steps with more, never with more than asked for."""
    model = module(optimizer=OptimizerConfig(ema_decay=0.5))
    start = model.ema.network.output.bias.clone()
    model.network.output.bias.data += 1
    model.ema.update(model.network, step=1)
    torch.testing.assert_close(model.ema.network.output.bias, start + 9 / 11)
    model.ema.update(model.network, step=10**6)
    torch.testing.assert_close(model.ema.network.output.bias, start + 1 - 2 / 11 / 2)


def test_non_finite_loss_stops_before_the_weights_are_changed(tmp_path):
    task, model = Countdown(length=16, values=6, val_items=4, batch_size=8), module()
    model.network.output.bias.data[2] = float("inf")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = Trainer(max_steps=3, **TRAINER)
    with pytest.raises(
        NonFiniteLoss,
        match=r"loss is nan at step 1 \(loss nan on rank 0 for items 0 to 7, t from 0\.\d+ to 0\.\d+\)",
    ):
        trainer.fit(model, TaskData(task))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)


def test_a_non_finite_loss_names_the_rates_of_the_optimizer():
    for name, named in (("adamw", False), ("muon", True)):
        model = module(optimizer=OptimizerConfig(name))
        model._parts = [(torch.tensor(math.nan), torch.arange(8), torch.rand(8))]
        model._trainer = Trainer(**TRAINER)
        with pytest.raises(NonFiniteLoss, match=r"a lower --model\.optimizer\.learning_rate") as raised:
            model._check_finite("loss", torch.tensor(math.nan))
        assert ("--model.optimizer.muon_learning_rate" in str(raised.value)) == named


@pytest.mark.slow
def test_gradient_accumulation_gives_the_same_run(trained, tmp_path):
    """The same global batch in two halves: the same losses up to rounding, because items, noise and
    normalisation are the same.
    """
    result = run_train(
        *TINY,
        "--trainer.max_steps=24",
        "--trainer.accumulate_grad_batches=2",
        f"--trainer.default_root_dir={tmp_path}",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    whole, halves = read_scalars(trained), read_scalars(tmp_path / "version_0")
    for tag in ("train/loss", "train/gradient_norm", "val/bound"):
        assert [step for step, _ in halves[tag]] == [step for step, _ in whole[tag]]
        assert [value for _, value in halves[tag]] == pytest.approx(
            [value for _, value in whole[tag]], rel=2e-3
        ), tag


@pytest.mark.slow
def test_bf16_and_compile(tmp_path):
    result = run_train(
        *TINY,
        *(
            "--trainer.max_steps=4",
            "--trainer.precision=bf16-mixed",
            "--model.compile_network=true",
            "--model.network.time=true",
        ),
        f"--trainer.default_root_dir={tmp_path}",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    losses = [value for _, value in read_scalars(tmp_path / "version_0")["train/loss"]]
    assert losses[0] == pytest.approx(math.log(6), rel=1e-3)
    assert losses[-1] < losses[0]
    assert tauflow.load(tmp_path / "version_0" / "last.ckpt").step == 4


@pytest.mark.parametrize(
    ("source", "time", "warned"),
    [("uniform", False, True), ("uniform", True, False), ("masked", False, False)],
)
def test_a_network_without_time_is_warned_of_where_the_posterior_depends_on_it(source, time, warned, recwarn):
    task = Countdown(length=16, values=6, batch_size=8, epoch_items=16, val_items=4)
    model = module(task.facts, source=source, network=dataclasses.replace(NETWORK, time=time))
    assert not [each for each in recwarn if "network.time" in str(each.message)], "a model may be rebuilt"
    Trainer(max_steps=2, **TRAINER).fit(model, TaskData(task))
    found = [str(each.message) for each in recwarn if "--model.network.time true" in str(each.message)]
    assert len(found) == warned


def test_muon_updates_the_hidden_matrices_and_adamw_the_rest():
    config = OptimizerConfig("muon", learning_rate=0.003, muon_learning_rate=0.02)
    ours, theirs = (perturbed().network for _ in range(2))
    matrices = theirs.hidden_matrices()
    others = [each for each in theirs.parameters() if all(each is not matrix for matrix in matrices)]
    assert {theirs.embedding.weight, theirs.output.weight} <= set(others)
    groups = [
        {"params": [each for each in others if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in others if each.ndim < 2], "weight_decay": 0.0},
    ]
    separate = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0),
        torch.optim.AdamW(groups, lr=0.003, betas=config.betas),
    ]
    together = config.build(ours)
    x, t = torch.arange(16).remainder(6)[None], torch.tensor([0.5])
    for _ in range(3):
        for network, optimizers in ((ours, [together]), (theirs, separate)):
            network.zero_grad()
            network(x, t).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        saved, together = together.state_dict(), config.build(ours)
        together.load_state_dict(saved)  # as a resumed run does
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_muon_needs_hidden_matrices():
    with pytest.raises(SettingsError, match="PlainNetwork has none"):
        OptimizerConfig("muon").build(Plain().build((8,), 6, 5))
