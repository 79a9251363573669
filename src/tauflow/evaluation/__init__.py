"""How good samples are: measure a grid of samplers and budgets, keep the results, and show them.

evaluate      every sampler at every budget on one model, cell by cell
results       Results: the numbers, their files, and a data frame of them
tables        results as Markdown and CSV, and in the terminal
figures       quality against NFE, properties of samples, and the files of a finished evaluation
samples       all samples as data: samples.jsonl, arrays, and PNGs
images        samples for people, as text and as images
tensorboard   results in TensorBoard
callback      SamplerEvaluation: all of it during training
"""
