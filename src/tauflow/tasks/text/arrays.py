"""Arrays in an .npz file that is not trusted."""

from tauflow.tasks.npz import read as read
