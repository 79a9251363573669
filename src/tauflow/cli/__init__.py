"""The command lines: train.py is training.train, sample.py is sampling.sample. Nobody imports this package."""
