"""Scenes of coloured shapes with captions: text-to-image in small."""

from tauflow.tasks.scenes.task import Scenes

__all__ = ["Scenes"]
