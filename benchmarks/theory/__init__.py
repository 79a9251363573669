"""Exact distributions, the distributions that samplers reach, and the quantities of the paper's theory."""
