"""The command lines: train.py is train.train, sample.py is sample.sample. Nobody imports this package."""
