"""Sequences of varying length: strings from files, rules for tokens, padding, and the task made of them."""

from tauflow.tasks.sequences.task import Sequences

__all__ = ["Sequences"]
