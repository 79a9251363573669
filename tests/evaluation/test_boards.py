"""Loggers other than TensorBoard: the texts, tables and figures they get, and the hints on where to look."""

import json

import pytest
from conftest import TINY, run_train
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tauflow.train.boards import tensorboard_tag, where_to_look


@pytest.mark.slow
def test_weights_and_biases_gets_tables_and_images(tmp_path):
    watch = ["--evaluation.samplers=[auto,'tr_cie(grid=tau)']", "--evaluation.nfes=[2,4]"]
    watch += ["--evaluation.num_samples=4", "--evaluation.batch_size=4", "--evaluation.every_n_validations=1"]
    logger = ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true"]
    result = run_train(*TINY, *watch, *logger, "--trainer.max_steps=8", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "failed" not in result.stderr
    (run,) = tmp_path.glob("checkpoints/smoke/version_0/wandb/offline-run-*")
    assert f"watch       wandb sync {run.relative_to(tmp_path)}" in result.stdout
    assert "tensorboard" not in result.stdout
    media = run / "files" / "media"
    (table,) = media.glob("table/overview/table_*.table.json")
    table = json.loads(table.read_text())
    assert table["columns"][:4] == ["sampler", "nfe", "metric", "value"]
    (samples,) = media.glob("table/samples/spaced_even/nfe_4_*.table.json")
    assert len(json.loads(samples.read_text())["data"]) == 2, "samples, without the headline"
    images = {path.name.rpartition("_vs_nfe")[0] for path in media.glob("images/*/*_vs_nfe_*.png")}
    assert images == {"error_rate", "sequence_error_rate", "unigram_tv", "nll"}
    assert len(list(media.glob("images/samples/*/evolution/nfe_4_*.png"))) == 2


def test_hints_fit_the_logger(tmp_path):
    place = {"save_dir": str(tmp_path), "name": "", "version": "version_3"}
    assert where_to_look(TensorBoardLogger(**place)) == f"tensorboard --logdir {tmp_path}"
    assert where_to_look(CSVLogger(**place)) == f"{tmp_path}/version_3/metrics.csv"


def test_charts_are_in_groups():
    assert tensorboard_tag("val/bound") == "1_overview/val/bound"
    assert tensorboard_tag("quality/nll/nfe_8") == "2_quality/nll/nfe_8"
    assert tensorboard_tag("val/bound_standard_error") == "5_training/val/bound_standard_error"
    assert tensorboard_tag("sampling/evaluation_seconds") == "6_details/sampling/evaluation_seconds"
