"""Studies of samplers on trained models: through `tauflow.evaluate`, with the task's own metrics."""

from functools import cache
from itertools import product

from tauflow.errors import SettingsError
from tauflow.evaluation import choose_samplers, evaluate, reference
from tauflow.runs import Run
from tauflow.samplers import Sampler
from tauflow.sampling import sampler_from
from tauflow.studies.base import Job, Record, Study
from tauflow.tables import Measured

REAL = "(real data)"


class OnModels(Study):
    """What studies of trained models share: a panel is a source, a row a sampler, x a budget; real data is a row of its own."""

    shown = ("error_rate", "sequence_error_rate", "unigram_tv")
    samplers = ("all",)
    grows = ("nfes", "samplers")

    @cache  # noqa: B019  a study lives as long as its process
    def rows(self, source: str) -> dict[str, Sampler]:
        rows, notes = choose_samplers(list(self.settings.samplers), self.models()[source])
        self.notes.extend(f"{source}: {note}" for note in notes)
        return rows

    def jobs(self):
        jobs = []
        for source in self.models():
            for nfe, row, seed in product(self.settings.nfes, [REAL, *self.rows(source)], self.settings.seeds):
                jobs.append(Job(source, row, nfe, seed))
        return jobs

    def measure(self, job):
        if job.row == REAL:
            return self.record(job, self.real(job.panel, self.settings.seeds.index(job.seed)))
        return self.sampled(job, self.models()[job.panel], self.rows(job.panel)[job.row], int(job.x))

    @cache  # noqa: B019
    def real(self, source: str, number: int) -> dict[str, Measured]:
        """Of as many real items as a cell has samples, others for each seed: so that what depends on their number is equal."""
        task, samples = self.models()[source].task, self.settings.samples
        measured = reference(task, samples, first=number * samples)
        if (number + 1) * samples > len(task.val_data):
            self.notes.append(f"{source}: there are {len(task.val_data)} real items only, which seeds share")
        return measured

    def sampled(self, job: Job, run: Run, sampler: Sampler, nfe: int) -> list[Record]:
        """The task's metrics of fresh samples, and what the sampler says of its steps."""
        settings = self.settings
        table = evaluate(run, {job.row: sampler}, [nfe], settings.samples, batch_size=settings.batch_size, seed=job.seed, show=0, real={})
        (cell,) = table.cells
        shares = {name: Measured(getattr(cell, name), 0.0) for name in ("clamped", "several_events", "leftover_masks", "counted_nfe")}
        return self.record(job, cell.metrics | shares)


class Countdown(OnModels):
    """Error against NFE of every sampler on the countdown models (paper: fig:countdown_exp): per transition, per sequence, and the
    unigram total variation that says whether a low error is bought with a wrong law."""

    nfes = (4, 8, 16, 32, 64, 128, 256)


class Text(OnModels):
    """Perplexity against NFE of every sampler on text models (paper: tab:text_masked, tab:text_uniform), with entropy, distinct n-grams and
    memorisation beside it. Needs --ckpt: text models are not shipped."""

    nfes = (8, 16, 32, 64, 128)
    samples = 256

    def models(self):
        if not self.settings.checkpoints:
            raise SettingsError("the study text needs --ckpt PATH, one or two checkpoints of text models: none are shipped")
        return super().models()

    shown = ("ppl_corpus_*", "ppl_mean_*", "entropy_bits", "distinct_2", "unigram_tv", "memorised_8grams")


class Ablation(OnModels):
    """What each part of TR-CIE brings (paper: tab:ablation_tr_text): Euler, TR, CIE, the nonuniform t grid, TR-CIE, TR-CIE-Exact; then our
    own axes, grid x jump rule x cutoff x finishing, for TR-CIE."""

    samplers = ("ablation",)
    shown = ("error_rate", "unigram_tv", "ppl_corpus_*", "entropy_bits", "distinct_2")

    @cache  # noqa: B019
    def rows(self, source):
        rows = super().rows(source)
        for grid, jump, finish in product(("t", "tau"), ("exponential", "one_event"), ("draw", "reuse")):
            for cutoff in (None,) if (grid, finish) == ("t", "draw") else (1e-2, 1e-3):  # that grid has no cutoff
                name = f"tr_cie {grid} {jump} {finish}" + (f" {cutoff:g}" if cutoff else "")
                sampler = sampler_from("tr_cie", grid=grid, jump=jump, finish=finish, cutoff=cutoff)
                if sampler not in rows.values():
                    rows[name] = sampler
        return rows


class Epsilon(OnModels):
    """How sensitive TR-CIE is to the floor eps_0 of an intensity (paper: tab:epsilon_sensitivity). A floor puts mass eps_0 (V - 1) on
    tokens that the model excludes: 5e-6 is a lot at V = 50257 and nothing at V = 32, so the sweep goes on to floors of equal mass."""

    x_name = "eps_0"
    ignores = ("samplers",)
    shown = ("error_rate", "unigram_tv", "ppl_corpus_*", "entropy_bits", "distinct_2")
    values = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 5e-6, 1e-4, 1e-3, 8e-3)

    def jobs(self):
        nfes, seeds = self.settings.nfes, self.settings.seeds
        return [Job(source, f"NFE {nfe}", x, seed) for source in self.models() for nfe, x, seed in product(nfes, self.values, seeds)]

    def measure(self, job):
        sampler = sampler_from("tr_cie", eps_0=job.x)
        return self.sampled(job, self.models()[job.panel], sampler, int(job.row.split()[1]))
