"""Images: sources of pictures, pixels as tokens, a cache, metrics, and the task made of them."""

from tauflow.tasks.images.task import Images

__all__ = ["Images"]
