"""Text: corpora, tokenizers, blocks, judges, and the task made of them."""

from tauflow.tasks.text.task import Text

__all__ = ["Text"]
