"""How good samples are: measure one cell, run a grid of them, keep the results, show them.

evaluate    every sampler at every budget on one trained model
measure     one cell: samples of one sampler at one budget, by the task's metrics
likelihood  how likely real data is to the sampler, in the same cell
reference   real data, measured like samples
grid        the one resumable loop over cells
store       Results: factors, metrics, measured values; kinds checks what a file of them holds
folder      a folder of results: continued, and written by one process at a time
views       which factors make a panel, a row and the axis
hooks       what a task may tell of its samples besides how to show them: drawings, a table
tables, figures, styles, pictures, distributions, tensorboard    what people look at
callback    SamplerEvaluation, all of it during training
"""
