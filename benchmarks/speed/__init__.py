"""Speed of tauflow, measured next to its peers."""
