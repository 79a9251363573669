"""Exact laws and their posteriors, the laws that samplers reach, and what the paper's theory speaks of."""
