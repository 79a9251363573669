"""Deliberate faults that the tests must catch: a check of the tests, not of the code.

    python -m benchmarks faults                          # all of them, ten minutes
    python -m benchmarks faults --jobs 2
    python -m benchmarks faults samplers "guidance sign" # a package, or by name
    python -m benchmarks faults --check                  # is every snippet still there, exactly once?

Each fault replaces one snippet of the source with a broken one. The runner copies the project to a temporary
folder and runs all the tests below without a fault, which must pass. Then, fault by fault, it breaks the
file, runs the fault's tests, which must fail, and restores the file. The exit code is 1 if a fault isn't
caught, or if its snippet isn't there anymore (stale).

When code moves or changes its names, update the snippet: a fault is its name in words, not a place. Remove a
fault only together with the behavior that it breaks.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = (
    *("src", "tests", "configs", "checkpoints", "data", "docs", "benchmarks"),
    *("pyproject.toml", "train.py", "sample.py", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)


@dataclass(frozen=True)
class Fault:
    """A snippet of a file and its broken replacement, and the tests that must fail with it."""

    name: str
    file: str  # in src/tauflow, or benchmarks/...
    old: str  # occurs exactly once
    new: str
    tests: str  # file.py::test, separated by blanks: the fastest ones that fail

    @property
    def path(self) -> str:
        return self.file if self.file.startswith("benchmarks/") else f"src/tauflow/{self.file}"

    @property
    def nodes(self) -> list[str]:
        """Return the tests as pytest takes them: a file is found by its name, whichever folder it's in."""
        nodes = []
        for node in self.tests.split():
            file, _, test = node.partition("::")
            found = next((ROOT / "tests").rglob(file), ROOT / "tests" / file)
            nodes.append(f"{found.relative_to(ROOT)}::{test}")
        return nodes

    @property
    def group(self) -> str:
        """Return the package of the fault. Modules at the top and the integrations are one group."""
        first = self.file.partition("/")[0]
        return "top" if first.endswith(".py") or first == "integrations" else first

    def stale(self, root: Path) -> str:
        """Return why the fault can't be applied, or nothing if it can."""
        path = root / self.path
        count = path.read_text().count(self.old) if path.is_file() else 0
        if count != 1:
            return f"the snippet occurs {count} times in {self.path}"
        for node in self.nodes:
            file, _, test = node.partition("::")
            if not (root / file).is_file() or f"def {test}(" not in (root / file).read_text():
                return f"test not found: {node}"
        return ""


FAULTS = [
    # process
    Fault(
        "derivative of a polynomial schedule without its factor",
        "process/schedules.py",
        "return self.exponent * t ** (self.exponent - 1)",
        "return t ** (self.exponent - 1)",
        "test_schedules.py::test_against_high_precision_at_both_ends",
    ),
    Fault(
        "clock loses its digits near the data",
        "process/schedules.py",
        "return torch.where(kappa < 0.5, -torch.log1p(-kappa), -torch.log(self._survival(t)))",
        "return -torch.log1p(-kappa)",
        "test_schedules.py::test_against_high_precision_at_both_ends",
    ),
    Fault(
        "noise where data should be",
        "process/process.py",
        "corrupted = coins >= self.schedule.kappa(t)[:, None]",
        "corrupted = coins < self.schedule.kappa(t)[:, None]",
        "test_process.py::test_corrupt_follows_the_mixture",
    ),
    Fault(
        "bound without the rate of staying",
        "process/process.py",
        "return 1 - p_stay - (x_t != x_1) * (1 + log_p_1)",
        "return 1 - (x_t != x_1) * (1 + log_p_1)",
        "test_process.py::test_the_bound_is_a_divergence_of_rates",
    ),
    Fault(
        "odds of the own token without the source",
        "process/process.py",
        "return 1 + kappa * self.source.inverse_probability(x) / (1 - kappa)",
        "return 1 + kappa / (1 - kappa)",
        "test_process.py::test_own_odds_are_a_ratio_of_evidence",
    ),
    Fault(
        "own token not zeroed",
        "process/sources.py",
        "return rows.scatter_(1, tokens[:, None], 0)",
        "return rows",
        "test_process.py::test_intensities_are_rows_without_what_is_no_jump",
    ),
    Fault(
        "carry-over missing",
        "process/sources.py",
        "    def movable(self, x: Tensor) -> Tensor:\n        return x == self.mask_id",
        "    def movable(self, x: Tensor) -> Tensor:\n        return torch.ones_like(x, dtype=torch.bool)",
        "test_sampler_contract.py::test_carry_over",
    ),
    Fault(
        "marginal source draws all tokens alike",
        "process/sources.py",
        "tokens = torch.searchsorted(cumulative, coins * cumulative[-1], right=True)",
        "tokens = (coins * len(cumulative)).long()",
        "test_process.py::test_a_marginal_source_draws_from_its_law",
    ),
    Fault(
        "jumps away from the data on a metric path",
        "process/metric.py",
        "return (near.gather(1, tokens[:, None]) - near).relu_().mul_(distribution)",
        "return (near - near.gather(1, tokens[:, None])).relu_().mul_(distribution)",
        "test_metric.py::test_the_bound_is_a_divergence_of_rates",
    ),
    Fault(
        "clock of a metric path without its origin",
        "process/metric.py",
        "return torch.log1p(self.schedule.odds(t) / self.beta_0)",
        "return torch.log1p(self.schedule.odds(t))",
        "test_metric.py::test_the_clock",
    ),
    Fault(
        "times of a batch not stratified",
        "process/process.py",
        "offset = torch.rand((), generator=generator, dtype=torch.float32)",
        "offset = count * torch.rand(count, generator=generator, dtype=torch.float32) - torch.arange(count)",
        "test_process.py::test_stratified_times_cover_every_stratum",
    ),
    # denoise
    Fault(
        "guidance sign",
        "denoise/guidance.py",
        "second + self._weight * (first - second)",
        "second + self._weight * (second - first)",
        "test_model.py::test_temperature_and_guidance",
    ),
    Fault(
        "mask column kept",
        "denoise/posterior.py",
        "return logits[..., :num_tokens]",
        "return logits",
        "test_sampler_contract.py::test_split_network_and_callable_agree",
    ),
    Fault(
        "logits that aren't numbers go unnoticed",
        "denoise/posterior.py",
        "if not math.isfinite(probs[:, 0].sum()):",
        "if False:",
        "test_sampler_contract.py::test_bad_logits_are_named_with_step_and_time",
    ),
    Fault(
        "cloned posterior not copied",
        "denoise/posterior.py",
        "result._answer = self._answer.clone() if index is None else take(self._answer, index)",
        "result._answer = self._answer if index is None else take(self._answer, index)",
        "test_denoiser.py::test_samples_are_those_of_a_clean_denoiser",
    ),
    Fault(
        "temperature multiplies the logits",
        "denoise/processors.py",
        "return at_least_float32(logits) / temperature",
        "return at_least_float32(logits) * temperature",
        "test_model.py::test_temperature_and_guidance",
    ),
    Fault(
        "temperature sharpens the own token of noise too",
        "denoise/processors.py",
        "((1 - 1 / temperature) * log_odds).to(logits)",
        "(0 * log_odds).to(logits)",
        "test_processors.py::test_what_the_others_say_is_tempered",
    ),
    Fault(
        "top-p cuts the token that reaches the mass",
        "denoise/processors.py",
        "mass_before = probs.cumsum(-1) - probs",
        "mass_before = probs.cumsum(-1)",
        "test_processors.py::test_rows_are_cut_to_their_likeliest_tokens",
    ),
    Fault(
        "parts of a batch get what belongs to the first part",
        "denoise/posterior.py",
        "values if self.sequences is None else values[self.sequences]",
        "values if self.sequences is None else values[: len(self.x)]",
        "test_processors.py::test_samples_may_be_allowed_different_tokens",
    ),
    Fault(
        "look back in time is given the newest memory",
        "denoise/denoiser.py",
        "given = self._given if goes_back else self._left",
        "given = self._left",
        "test_memory.py::test_a_look_back_differs_in_time_alone",
    ),
    Fault(
        "network is given the sampler's own states",
        "denoise/denoiser.py",
        "inputs = [query.x.clone(), query.t.clone()]",
        "inputs = [query.x, query.t]",
        "test_denoiser.py::test_samples_are_those_of_a_clean_denoiser",
    ),
    Fault(
        "condition doesn't reach the network",
        "denoise/denoiser.py",
        "            if condition is None:\n                condition = torch.full(",
        "            if True:\n                condition = torch.full(",
        "test_model.py::test_conditions_reach_the_network",
    ),
    # samplers
    Fault(
        "history diagonal not zeroed",
        "samplers/leaping.py",
        "return process.intensity(probs * self.coefficient, tokens, self.posterior.t)",
        "return probs * self.coefficient",
        "test_sampler_law.py::test_intensities_have_no_own_token_and_history_has_none_then",
    ),
    Fault(
        "r inverted",
        "samplers/leaping.py",
        "r = dtau / grid.dtau(n - 1) if n > 0",
        "r = grid.dtau(n - 1) / dtau if n > 0",
        "test_sampler_order.py::test_coefficients_on_a_nonuniform_grid",
    ),
    Fault(
        "wrong time fed to the network",
        "samplers/leaping.py",
        "        posterior = problem.evaluate(state.x, grid.t[n])\n        if previous and self.rule",
        "        posterior = problem.evaluate(state.x, grid.tau[n])\n        if previous and self.rule",
        "test_sampler_contract.py::test_the_times_of_the_default_grid",
    ),
    Fault(
        "finishing draw not paid for",
        "samplers/leaping.py",
        "budget = nfe - draws",
        "budget = nfe",
        "test_sampler_contract.py::test_shape_range_and_honest_nfe",
    ),
    Fault(
        "K >= 1 instead of K = 1",
        "samplers/leaping.py",
        'moves = (total >= 1 if rule.jump == "exponential" else total == 1)',
        "moves = (total >= 1)",
        "test_sampler_law.py::test_one_leap_two_ways",
    ),
    Fault(
        "one_event without exp(-L)",
        "samplers/leaping.py",
        'if rule.jump == "exponential" else total * stay',
        'if rule.jump == "exponential" else total',
        "test_sampler_law.py::test_one_leap_two_ways",
    ),
    Fault(
        "ceiling of intensities ignored",
        "samplers/leaping.py",
        "total.clamp_(clamp.floor, clamp.ceiling)",
        "total.clamp_(clamp.floor)",
        "test_sampler_contract.py::test_the_ceiling_bounds_every_channel",
    ),
    Fault(
        "cutoff off by one step",
        "samplers/grids.py",
        "tau = last * number / max(1, steps)",
        "tau = last * number / (steps + 1)",
        "test_sampler_contract.py::test_a_tau_grid_without_cutoff_ends_where_the_t_grid_does",
    ),
    Fault(
        "theta stage from the wrong state",
        "samplers/theta.py",
        "star = problem.evaluate(x_star, t_star)",
        "star = problem.evaluate(first.posterior.x, t_star)",
        "test_golden.py::test_samples_are_those_of_the_first_recording",
    ),
    Fault(
        "finishing draw on prompts",
        "samplers/run.py",
        '    movable = problem.movable(state.x)\n    if policy == "reuse":',
        '    movable = problem.process.movable(state.x)\n    if policy == "reuse":',
        "test_sampler_contract.py::test_prompts_hold_in_every_stage",
    ),
    Fault(
        "systematic coins all start at zero",
        "samplers/random.py",
        "start = uniforms(len(movable), generator, movable.device)[:, None]",
        "start = 0 * uniforms(len(movable), generator, movable.device)[:, None]",
        "test_geometry.py::test_systematic_coins_have_exact_marginals_and_lie_apart",
    ),
    Fault(
        "share of an evaluation rounded down",
        "samplers/confident.py",
        "share = -(-left // (plan.steps - n))",
        "share = left // (plan.steps - n)",
        "test_confident.py::test_what_is_revealed_when",
    ),
    Fault(
        "sum H instead of sum H - max H",
        "samplers/confident.py",
        "entropy.cumsum(1) - entropy.cummax(1).values <= level",
        "entropy.cumsum(1) <= level",
        "test_confident.py::test_what_is_revealed_when",
    ),
    Fault(
        "draws don't make up for what is taken back",
        "samplers/remask.py",
        "return min(1.0, (left - after + sigma * (1 - left)) / left)",
        "return min(1.0, (left - after) / left)",
        "test_remask.py::test_samples_follow_the_kernel",
    ),
    Fault(
        "bridge extrapolates twice as far",
        "samplers/bridge.py",
        "(after - now) / (2 * (now - before))",
        "(after - now) / (now - before)",
        "test_bridge.py::test_bridge_is_second_order_up_to_the_data",
    ),
    Fault(
        "likelihood of rows that aren't normalized",
        "samplers/likelihood.py",
        "share = weights.gather(1, tokens[:, None]).squeeze(1) / weights.sum(-1)",
        "share = weights.gather(1, tokens[:, None]).squeeze(1)",
        "test_likelihood.py::test_a_time_grid_sampler_has_the_likelihood_of_its_exact_law",
    ),
    Fault(
        "extrapolation to the hitting time of the token before",
        "samplers/reveal.py",
        "own_time = state.times[sequence, state.done[sequence] + rank.flatten()[index] + 1]",
        "own_time = state.times[sequence, state.done[sequence] + rank.flatten()[index]]",
        "test_reveal.py::test_ho_fhs_extrapolates_to_the_hitting_time",
    ),
    # theory
    Fault(
        "backward messages along the wrong direction",
        "tasks/countdown.py",
        "backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ transition.T",
        "backward[:, d] = (backward[:, d + 1] * likelihood[:, d + 1]) @ transition",
        "test_countdown.py::test_forward_backward_equals_enumeration",
    ),
    Fault(
        "entropy counts a transition too many",
        "tasks/countdown.py",
        "for _ in range(length - 1):",
        "for _ in range(length):",
        "test_countdown.py::test_stationary_distribution_and_entropy",
    ),
    Fault(
        "countdown free to jump before zero",
        "tasks/countdown.py",
        "return (x >= step) * (x - step) + (x < step) * fresh",
        "return (x > step) * (x - step) + (x <= step) * fresh",
        "test_countdown.py::test_stationary_distribution_and_entropy",
    ),
    Fault(
        "evidence added instead of multiplied",
        "benchmarks/theory/laws.py",
        "likelihood, by_token).prod(-1)",
        "likelihood, by_token).sum(-1)",
        "test_bound.py::test_masked_bound_is_the_entropy",
    ),
    Fault(
        "jumps of the propagator that never move twice",
        "benchmarks/theory/propagator.py",
        "moving = -torch.expm1(-total) / total.clamp(min=1e-300)",
        "moving = torch.exp(-total)",
        "test_sampler_order.py::test_tr_cie_is_second_order_in_law",
    ),
    Fault(
        "quadrature without the length of the step",
        "benchmarks/theory/local_error.py",
        "(start + half * (1 + place), half * weight)",
        "(start + half * (1 + place), weight)",
        "test_diagnostics.py::test_order_of_the_local_error",
    ),
    Fault(
        "divergence of rates without its linear part",
        "benchmarks/theory/path_kl.py",
        "return torch.xlogy(a, a / b) - a + b",
        "return torch.xlogy(a, a / b)",
        "test_diagnostics.py::test_path_kl_in_closed_form",
    ),
    Fault(
        "most dependent coordinate comes next",
        "samplers/learned.py",
        "cost = (matrix[:, chosen] @ near)",
        "cost = (-matrix[:, chosen] @ near)",
        "test_learned_order.py::test_an_order_is_learned_where_positions_say_nothing",
    ),
    Fault(
        "influence twice the total variation",
        "samplers/learned.py",
        "(problem.evaluate(one, t).dense() - nothing).abs().sum(-1) / 2",
        "(problem.evaluate(one, t).dense() - nothing).abs().sum(-1)",
        "test_independent.py::test_the_learned_influence_is_the_move_of_a_posterior",
    ),
    Fault(
        "learned files of other weights used",
        "samplers/learned.py",
        'if saved.pop("checkpoint") != digest(checkpoint):',
        'if saved.pop("checkpoint") is None:',
        "test_learned.py::test_counts_lie_beside_their_checkpoint",
    ),
    Fault(
        "damaged learned files used",
        "samplers/learned.py",
        'elif saved.pop("sha256", None) not in (',
        'elif saved.pop("sha256", None) == (',
        "test_untrusted.py::test_a_flipped_bit_in_a_learned_file",
    ),
    # networks
    Fault(
        "positions turned the wrong way in the gradient",
        "networks/transformer.py",
        "return _rotate_(gradient.contiguous(), cos, -sin), None, None",
        "return _rotate_(gradient.contiguous(), cos, sin), None, None",
        "test_transformer.py::test_rotation_gradient",
    ),
    Fault(
        "padding is read",
        "networks/transformer.py",
        "F.scaled_dot_product_attention(q, k, v, attn_mask=attended)",
        "F.scaled_dot_product_attention(q, k, v)",
        "test_transformer.py::test_padding_mask_hides_padding",
    ),
    Fault(
        "network isn't told the time",
        "networks/transformer.py",
        "time = None if self.time is None else self.time(t)",
        "time = None if self.time is None else self.time(0 * t)",
        "test_transformer.py::test_time_conditioning_is_switchable",
    ),
    Fault(
        "first logits aren't zero",
        "networks/transformer.py",
        "nn.init.zeros_(self.output.weight)  # all logits 0",
        "nn.init.ones_(self.output.weight)  # all logits 0",
        "test_transformer.py::test_first_logits_are_zero",
    ),
    Fault(
        "only the first axis of a grid has positions",
        "networks/transformer.py",
        "angles.append(place.flatten().double()[:, None] * frequency)",
        "angles.append(places[0].flatten().double()[:, None] * frequency)",
        "test_transformer.py::test_rotary_attention_on_a_grid_depends_on_both_differences",
    ),
    Fault(
        "condition not given is taken for the first value",
        "networks/network.py",
        "table(torch.where(column == DROPPED, table.num_embeddings - 1, column))",
        "table(torch.where(column == DROPPED, 0, column))",
        "test_transformer.py::test_each_column_of_a_condition_matters_and_not_given_is_a_value_of_its_own",
    ),
    Fault(
        "loss of a bin of half its width",
        "networks/unet.py",
        "high = (value + self.margin - mean) * torch.exp(-log_scale)",
        "high = (value - mean) * torch.exp(-log_scale)",
        "test_unet.py::test_the_loss_of_rows_is_the_cross_entropy_of_their_logits",
    ),
    Fault(
        "U-Net isn't told the condition",
        "networks/unet.py",
        "parts.append(self.condition(condition, count))",
        "parts.append(self.condition(None, count))",
        "test_unet.py::test_a_dropped_condition_is_one_of_its_own",
    ),
    Fault(
        "anchors look at masked values",
        "networks/unet.py",
        "known = (x < self.num_tokens).float().permute(0, 3, 1, 2)",
        "known = (x <= self.num_tokens).float().permute(0, 3, 1, 2)",
        "test_unet.py::test_anchors_are_means_of_what_is_known_and_guesses_by_other_channels",
    ),
    Fault(
        "noise level of a DiT with the wrong sign",
        "networks/dit.py",
        "t = -t.clamp(min=NOISIEST).log()",
        "t = t.clamp(min=NOISIEST).log()",
        "test_dits.py::test_logits_are_those_of_the_original",
    ),
    # tasks
    Fault(
        "training and validation items are the same",
        "tasks/countdown.py",
        "keys = [seed_of(self.name, self.seed, self.split, number) for number in numbers]",
        "keys = [seed_of(self.name, self.seed, number) for number in numbers]",
        "test_countdown.py::test_an_item_is_a_pure_function_of_seed_and_number",
    ),
    Fault(
        "samples judged by another step than asked for",
        "tasks/countdown.py",
        "    return condition + 1",
        "    return 0 * condition + 1",
        "test_countdown.py::test_labelled_metrics_by_hand",
    ),
    Fault(
        "no continuation counts below the highest order",
        "tasks/text/statistics.py",
        "codes, counts = np.unique(codes % np.uint64(num_tokens ** (n - 1)), return_counts=True)",
        "codes, counts = np.unique(_codes(blocks, n - 1, num_tokens), return_counts=True)",
        "test_ngrams.py::test_bigrams_by_hand",
    ),
    Fault(
        "windows of the judge don't overlap",
        "tasks/text/metrics.py",
        "step = self.context - 1",
        "step = self.context",
        "test_judges.py::test_equal_to_transformers",
    ),
    Fault(
        "padding is judged",
        "tasks/text/metrics.py",
        "last = len(part)",
        "last = width",
        "test_judges.py::test_equal_to_transformers",
    ),
    Fault(
        "validation documents in the training blocks",
        "tasks/text/blocks.py",
        'if split.validates(text) == (name == "val"))',
        'if split.validates(text) or name == "train")',
        "test_text.py::test_the_split_is_by_document_and_copies_stay_together",
    ),
    Fault(
        "cache's key forgets the tokenizer",
        "tasks/text/blocks.py",
        "key = key_of(VERSION, corpus.digest(), tokenizer, split.length, split.val_share, split.seed)",
        "key = key_of(VERSION, corpus.digest(), split.length, split.val_share, split.seed)",
        "test_text.py::test_the_cache_is_found_again_and_remade_when_any_key_changes",
    ),
    Fault(
        "documents don't end",
        "tasks/text/blocks.py",
        "np.array([*ids, vocabulary.eos], dtype=np.int32)",
        "np.array(ids, dtype=np.int32)",
        "test_text.py::test_blocks_hold_all_tokens_in_order",
    ),
    Fault(
        "resumed run of accumulated batches starts at the wrong item",
        "tasks/data.py",
        "self.share.epoch(self.share.step() * self.share.accumulate)",
        "self.share.epoch(self.share.step())",
        "test_resume.py::test_every_checkpoint_of_accumulated_steps_resumes",
    ),
    Fault(
        "every pass over the data in the same order",
        "tasks/task.py",
        "seed_of(self.name, self.seed, number)",
        "seed_of(self.name, self.seed)",
        "test_text.py::test_every_pass_is_a_permutation",
    ),
    Fault(
        "distance of images without the shift of the mean",
        "tasks/images/metrics.py",
        "value = shift.square().sum() + real.root",
        "value = real.root",
        "test_image_metrics.py::test_fid_is_that_of_torchmetrics",
    ),
    Fault(
        "kernel distance counts the cross term once",
        "tasks/images/metrics.py",
        "- 2 * cross.mean() + real.kernel_mean",
        "- cross.mean() + real.kernel_mean",
        "test_image_metrics.py::test_kid_is_that_of_torchmetrics",
    ),
    Fault(
        "red and blue swapped",
        "tasks/images/tokens.py",
        "% self.num_tokens for channel in (red, blue)]",
        "% self.num_tokens for channel in (blue, red)]",
        "test_images.py::test_decorrelated_tokens_are_a_bijection_of_colors",
    ),
    # train
    Fault(
        "raw weights sampled instead of averaged ones",
        "train/module.py",
        "return Model(self.ema.network, self.process, facts.shape, channels=facts.channels)",
        "return Model(self.network, self.process, facts.shape, channels=facts.channels)",
        "test_module.py::test_ema_is_what_validation_and_reloading_use",
    ),
    Fault(
        "raw weights validated",
        "train/module.py",
        "seen = self.validation(self.ema.network, x_1",
        "seen = self.validation(self.network, x_1",
        "test_module.py::test_ema_is_what_validation_and_reloading_use",
    ),
    Fault(
        "averaging starts slowly",
        "train/module.py",
        "decay = min(self.decay, (1 + step) / (10 + step))",
        "decay = self.decay",
        "test_module.py::test_ema_update_by_hand",
    ),
    Fault(
        "loss depends on how the batch is split",
        "train/module.py",
        "count = int(noise.corrupted.sum())",
        "count = int(mine.corrupted.sum())",
        "test_module.py::test_loss_and_gradient_do_not_depend_on_the_split",
    ),
    Fault(
        "every step has the same noise",
        "train/module.py",
        'generator_for("training noise", self.seed, step)',
        'generator_for("training noise", self.seed)',
        "test_module.py::test_training_noise_is_a_function_of_seed_and_step",
    ),
    Fault(
        "condition dropout ignored",
        "train/module.py",
        "condition = condition.masked_fill(lost[:, None], DROPPED)",
        "condition = condition.masked_fill(lost[:, None] & False, DROPPED)",
        "test_conditions.py::test_conditions_are_dropped_at_random_the_same_however_the_batch_is_split",
    ),
    Fault(
        "weights changed although the loss isn't finite",
        "train/module.py",
        "        if torch.isfinite(value):\n            return",
        "        if True:\n            return",
        "test_module.py::test_non_finite_loss_stops_before_the_weights_are_changed",
    ),
    Fault(
        "bound without the cost of the last draw",
        "train/bound.py",
        "if self.process.bound_cutoff:",
        "if False:",
        "test_module.py::test_uniform_bound_does_not_grow_with_the_number_of_items",
    ),
    Fault(
        "standard error of the bound counts the spread over time",
        "train/bound.py",
        "values = values[at.argsort()].double()",
        "values = values.double()",
        "test_bound.py::test_standard_error_is_honest",
    ),
    Fault(
        "warm-up starts at zero",
        "train/module.py",
        "return (step + 1) / self.warmup_steps",
        "return step / self.warmup_steps",
        "test_module.py::test_logged_values_of_a_run",
    ),
    Fault(
        "checkpoint in the middle of an accumulated step",
        "train/callbacks.py",
        "        if pl_module.is_inside_step:\n            # Nothing can be resumed from here",
        "        if False:\n            # Nothing can be resumed from here",
        "test_resume.py::test_every_checkpoint_of_accumulated_steps_resumes",
    ),
    Fault(
        "run resumed with other settings",
        "train/resume.py",
        "    if different:\n",
        "    if False:\n",
        "test_checkpoint.py::test_a_run_is_resumed_with_its_own_settings_only",
    ),
    Fault(
        "loading a checkpoint moves the global random numbers",
        "train/checkpoint.py",
        "with torch.random.fork_rng(devices=[]):",
        "if True:",
        "test_checkpoint.py::test_loading_leaves_the_global_rng_alone",
    ),
    # evaluation
    Fault(
        "every batch of samples with the same seed",
        "evaluation/evaluate.py",
        'return generator_for("evaluation", self.seed, batch)',
        'return generator_for("evaluation", self.seed)',
        "test_evaluate.py::test_values_and_errors_are_those_of_the_samples",
    ),
    Fault(
        "temperature of an evaluation ignored",
        "evaluation/evaluate.py",
        "if self.temperature != 1:",
        "if False:",
        "test_sample.py::test_prompt_temperature_guidance_and_precision",
    ),
    Fault(
        "condition asked for ignored",
        "evaluation/evaluate.py",
        "        if self.condition is not None:\n            return self.condition",
        "        if False:\n            return self.condition",
        "test_evaluate.py::test_conditions_are_those_of_validation_items_or_the_one_asked_for",
    ),
    Fault(
        "standard error without the square root of N",
        "evaluation/results.py",
        "math.sqrt(squares / (n - 1) / n) if n > 1",
        "math.sqrt(squares / (n - 1)) if n > 1",
        "test_likelihood_evaluation.py::test_it_is_that_of_the_first_validation_items",
    ),
    Fault(
        "failed cells count as done",
        "evaluation/results.py",
        "done = {key(cell.factors) for cell in self.cells if not cell.problem}",
        "done = {key(cell.factors) for cell in self.cells}",
        "test_sample.py::test_finished_cells_are_never_lost",
    ),
    Fault(
        "finished cells are measured again",
        "evaluation/results.py",
        "for each, factors in once.items() if each not in done]",
        "for each, factors in once.items()]",
        "test_evaluate.py::test_finished_cells_are_not_made_again",
    ),
    Fault(
        "infinite numbers become NaN in the file",
        "evaluation/results.py",
        "return None if math.isnan(value) else str(value)",
        "return None",
        "test_evaluate.py::test_infinite_numbers_survive_the_file",
    ),
    Fault(
        "a NaN may be the best",
        "evaluation/tables.py",
        "if measured and math.isfinite(measured.value) and row != REAL:",
        "if measured and row != REAL:",
        "test_evaluate.py::test_best_ignores_what_is_no_number_and_ties_of_all",
    ),
    Fault(
        "paired difference with the wrong sign",
        "evaluation/tables.py",
        "self._means([a - b for a, b in zip(*lists, strict=False)] for lists in both)",
        "self._means([b - a for a, b in zip(*lists, strict=False)] for lists in both)",
        "test_likelihood_evaluation.py::test_differences_are_those_of_the_same_items",
    ),
    Fault(
        "nll of a sequence instead of a token",
        "evaluation/evaluate.py",
        'each = [number / task.length for number in all_reduce(nats, "SUM")]',
        'each = list(all_reduce(nats, "SUM"))',
        "test_likelihood_evaluation.py::test_it_is_that_of_the_first_validation_items",
    ),
    Fault(
        "evaluation during training moves the global random numbers",
        "evaluation/callback.py",
        "with isolate_rng(), trainer.precision_plugin.forward_context():",
        "with trainer.precision_plugin.forward_context():",
        "test_callback.py::test_a_failing_sampler_is_named_and_changes_nothing",
    ),
    # recipes
    Fault(
        "rows of Dream not shifted",
        "recipes/masked_lms.py",
        "    shift=1,\n",
        "    shift=0,\n",
        "test_masked_lms.py::test_logits_are_those_computed_by_hand",
    ),
    Fault(
        "gate and up of LLaDA swapped",
        "recipes/masked_lms.py",
        """(r"^(model\\.layers\\.\\d+)\\.ff_proj\\.", r"\\1.mlp.gate_proj."),
        (r"^(model\\.layers\\.\\d+)\\.up_proj\\.", r"\\1.mlp.up_proj."),""",
        """(r"^(model\\.layers\\.\\d+)\\.ff_proj\\.", r"\\1.mlp.up_proj."),
        (r"^(model\\.layers\\.\\d+)\\.up_proj\\.", r"\\1.mlp.gate_proj."),""",
        "test_masked_lms.py::test_logits_are_those_computed_by_hand",
    ),
    Fault(
        "Duo isn't told the noise level",
        "recipes/dits.py",
        '    config=duo_config,\n    time="sigma",',
        "    config=duo_config,\n    time=None,",
        "test_dits.py::test_logits_are_those_of_the_original",
    ),
    Fault(
        "SEDD with another noise taken for absorbing",
        "recipes/dits.py",
        'if kind != ("absorb", "loglinear"):',
        "if False:",
        "test_dits.py::test_settings_that_the_recipe_does_not_know_are_refused",
    ),
    Fault(
        "rest of the budget not shared among blocks",
        "recipes/generate.py",
        "budget = nfe // blocks + (number < nfe % blocks)",
        "budget = nfe // blocks",
        "test_generate.py::test_noise_without_masks_does_not_stand_after_a_block",
    ),
    Fault(
        "samples that have ended are sampled again",
        "recipes/generate.py",
        "going = going[task.lengths(tokens[going]) == length]",
        "going = going",
        "test_generate.py::test_a_sample_that_has_ended_is_not_sampled_any_more",
    ),
    Fault(
        "prompt not known while a block is sampled",
        "recipes/generate.py",
        "            prompt=asked.prompt,\n",
        "",
        "test_generate.py::test_one_block_is_a_sample_with_the_prompt_frozen",
    ),
    Fault(
        "rows of a ragged batch one place off",
        "recipes/language.py",
        "places = (begin + numbers - self.shift).clamp(min=0)",
        "places = (begin + numbers).clamp(min=0)",
        "test_masked_lms.py::test_sequences_of_a_ragged_batch_are_as_alone",
    ),
    Fault(
        "weights of another model loaded",
        "recipes/loading.py",
        "        check_weights(wanted, found)\n",
        "",
        "test_dits.py::test_weights_that_do_not_fit_are_named",
    ),
    # cli
    Fault(
        "flag --temperature ignored",
        "cli/sample.py",
        "temperature=settings.temperature,",
        "temperature=1.0,",
        "test_sample.py::test_prompt_temperature_guidance_and_precision",
    ),
    Fault(
        "flag --top_k ignored",
        "cli/sample.py",
        "        top_k=settings.top_k,\n",
        "",
        "test_processors.py::test_sample_py_takes_both",
    ),
    Fault(
        "oldest run sampled by default",
        "cli/sample.py",
        "newest = max(found, key=lambda path: path.stat().st_mtime)",
        "newest = min(found, key=lambda path: path.stat().st_mtime)",
        "test_sample.py::test_no_arguments_take_the_best_of_the_newest_run",
    ),
    Fault(
        "results of another seed resumed",
        "cli/sample.py",
        '"batch_size", "seed", "show"',
        '"batch_size", "show"',
        "test_sample.py::test_a_grid_is_written",
    ),
    Fault(
        "learned counts not kept",
        "cli/sample.py",
        "            learned.save_counts(path, model.counts)\n        print",
        "        print",
        "test_learned.py::test_sample_learns_counts_and_keeps_them",
    ),
    Fault(
        "exit code 0 although cells failed",
        "cli/sample.py",
        "sys.exit(0 if complete or rank() else 1)",
        "sys.exit(0)",
        "test_sample.py::test_finished_cells_are_never_lost",
    ),
    Fault(
        "finished run trained further",
        "cli/train.py",
        "if limit is not None and 0 <= limit <= reached:",
        "if limit is not None and 0 <= limit < reached:",
        "test_train.py::test_resuming_what_cannot_be_resumed",
    ),
    Fault(
        "learned influence not used by default",
        "cli/sample.py",
        'return ["independent"]',
        "return settings.sampler",
        "test_independent.py::test_sample_learns_influence_and_keeps_it",
    ),
    Fault(
        "folder of a running run resumed",
        "cli/train.py",
        "    with lock_folder(folder, IN_USE):\n        yield folder\n\n\n@",
        "    yield folder\n\n\n@",
        "test_training_faults.py::test_a_folder_in_which_a_run_trains_is_not_resumed",
    ),
    Fault(
        "folder of a failed run left behind",
        "cli/train.py",
        "            shutil.rmtree(folder)\n",
        "",
        "test_training_faults.py::test_the_folder_of_a_failed_run_is_removed_unless_something_was_saved",
    ),
    Fault(
        "commas in a list of budgets not read",
        "cli/sample.py",
        'for part in _read_word(word).split(",") if part.strip()]',
        "for part in [word] if part.strip()]",
        "test_sample.py::test_a_grid_is_written",
    ),
    # top: untrusted.py, files.py, seeds.py, integrations
    Fault(
        "compressed parts of a checkpoint unpacked",
        "untrusted.py",
        "if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:",
        "if False:",
        "test_untrusted.py::test_an_archive_that_is_broken_or_does_harm",
    ),
    Fault(
        "checksums of a checkpoint ignored",
        "untrusted.py",
        "if wrong is not None:",
        "if False:",
        "test_untrusted.py::test_a_flipped_bit_is_found_or_changes_nothing",
    ),
    Fault(
        "names in a pickle not checked",
        "untrusted.py",
        '    if foreign:\n        raise CheckpointError(\n            f"{path} contains more',
        '    if False:\n        raise CheckpointError(\n            f"{path} contains more',
        "test_untrusted.py::test_a_pickle_of_weights",
    ),
    Fault(
        "weights that share their numbers expanded",
        "untrusted.py",
        "if sum(weight.nbytes for weight in weights.values()) > stored:",
        "if not stored:",
        "test_untrusted.py::test_weights_that_share_their_numbers_take_no_memory",
    ),
    Fault(
        "types of described arguments not checked",
        "untrusted.py",
        "if wanted is not None and type(value) not in wanted:",
        "if False:",
        "test_untrusted.py::test_an_entry_of_a_checkpoint",
    ),
    Fault(
        "tokenizer may make a text as long as it likes",
        "untrusted.py",
        "if math.prod(_growths(described.get(name))) > MAX_GROWTH:",
        "if False:",
        "test_untrusted.py::test_a_tokenizer_of_a_folder",
    ),
    Fault(
        "half of a file replaces it",
        "files.py",
        "            yield file\n",
        "            os.replace(unfinished, path)\n"
        "            yield file\n"
        "            os.link(path, unfinished)\n",
        "test_checkpoint.py::test_a_finished_file_is_never_half_written",
    ),
    Fault(
        "unfinished files left behind",
        "files.py",
        "            unfinished.unlink(missing_ok=True)",
        "            pass",
        "test_files.py::test_what_is_not_completed_is_removed",
    ),
    Fault(
        "folder held by two processes",
        "files.py",
        "        lock.acquire()\n",
        "        pass\n",
        "test_files.py::test_a_folder_is_held_by_one_process_until_it_ends",
    ),
    Fault(
        "scheduler config imports a class",
        "integrations/diffusers.py",
        "else registered_sampler(sampler, some)",
        'else __import__("tauflow.samplers").samplers.sampler_from(sampler, some)',
        "test_untrusted.py::test_a_scheduler_config_runs_no_code",
    ),
    Fault(
        "temperature of the pipeline ignored",
        "integrations/diffusers.py",
        "torch.default_generator if generator is None else generator, temperature or 1.0)",
        "torch.default_generator if generator is None else generator, 1.0)",
        "test_diffusers.py::test_temperature_is_that_of_the_call",
    ),
    Fault(
        "seed ignores its key",
        "numerics.py",
        "digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()",
        "digest = hashlib.blake2b(repr(key[:1]).encode(), digest_size=8).digest()",
        "test_countdown.py::test_an_item_is_a_pure_function_of_seed_and_number",
    ),
]


def main() -> None:
    arguments = parsed()
    faults = chosen(arguments.name)
    stale = {fault.name: reason for fault in faults if (reason := fault.stale(ROOT))}
    if arguments.check:
        for name, reason in stale.items():
            print(f"stale       {name}: {reason}")
        print(f"{len(faults) - len(stale)} of {len(faults)} faults can be applied ({counted(faults)})")
        sys.exit(1 if stale else 0)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults.") as temporary:
        folders = [Path(temporary) / str(number) for number in range(arguments.jobs)]
        for folder in folders:
            copy_project(folder)
        if not arguments.no_baseline:
            check_baseline(folders[0], [fault for fault in faults if fault.name not in stale])
        caught = run_all(faults, stale, folders)
    print(f"{caught} of {len(faults)} caught ({counted(faults)}), {time.monotonic() - begin:.0f} s")
    sys.exit(0 if caught == len(faults) else 1)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help="names of faults or packages (default: all)")
    parser.add_argument("--check", action="store_true", help="only check that every fault can be applied")
    parser.add_argument("--jobs", type=int, default=1, help="faults to run at the same time")
    parser.add_argument(
        "--no_baseline", action="store_true", help="don't run the tests without a fault first"
    )
    return parser.parse_args()


def chosen(names: list[str]) -> list[Fault]:
    """Return the faults with these names or in these packages."""
    known = {fault.name for fault in FAULTS} | {fault.group for fault in FAULTS}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"error: unknown fault {unknown[0]!r}. Known are {', '.join(sorted(known))}.")
    return [fault for fault in FAULTS if not names or fault.name in names or fault.group in names]


def counted(faults: list[Fault]) -> str:
    return ", ".join(f"{group} {count}" for group, count in Counter(fault.group for fault in faults).items())


def copy_project(folder: Path) -> None:
    """Copy what the tests need."""
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, folder / name)


def check_baseline(folder: Path, faults: list[Fault]) -> None:
    """Exit unless all tests pass without a fault."""
    nodes = list(dict.fromkeys(node for fault in faults for node in fault.nodes))
    begin = time.monotonic()
    if nodes and run_tests(folder, nodes).returncode:
        sys.exit("error: some of these tests fail without a fault. Run them with pytest.")
    print(
        f"{'no fault':12}{len(nodes)} tests pass without a fault ({time.monotonic() - begin:.0f} s)",
        flush=True,
    )


def run_all(faults: list[Fault], stale: dict[str, str], folders: list[Path]) -> int:
    """Run every fault in one of the folders, print a line each, and return how many are caught."""
    free: queue.Queue[Path] = queue.Queue()
    for folder in folders:
        free.put(folder)

    def run(fault: Fault) -> bool:
        if fault.name in stale:
            print(f"{'stale':12}{fault.name}: {stale[fault.name]}", flush=True)
            return False
        folder, begin = free.get(), time.monotonic()
        try:
            said, detail = tried(fault, folder)
        finally:
            free.put(folder)
        print(f"{said:12}{fault.name} ({time.monotonic() - begin:.1f} s{detail})", flush=True)
        return said == "caught"

    with ThreadPoolExecutor(len(folders)) as pool:
        return sum(pool.map(run, faults))


def tried(fault: Fault, folder: Path) -> tuple[str, str]:
    """Return whether the tests catch a fault, and the first test that failed."""
    path = folder / fault.path
    text = path.read_text()
    write(path, text.replace(fault.old, fault.new))
    try:
        run = run_tests(folder, fault.nodes)
    finally:
        write(path, text)
    failed = [line.split()[1] for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if (
        run.returncode == 1 and failed
    ):  # other codes: no tests, tests that can't be collected, a killed process
        return "caught", f", {failed[0]}"
    return "NOT CAUGHT", f", exit code {run.returncode}"


def write(path: Path, text: str) -> None:
    """Write a source file, and remove its bytecode: Python compares times by the second only."""
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_tests(folder: Path, nodes: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests on the code in a folder, until the first one fails."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]),
        "OMP_NUM_THREADS": "1",
    }
    options = ["-n", "0", "-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    command = [sys.executable, "-m", "pytest", *options, *nodes]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    main()
