"""Scenes of colored shapes with captions: text-to-image in small."""

from tauflow.tasks.scenes.task import Scenes

__all__ = ["Scenes"]
