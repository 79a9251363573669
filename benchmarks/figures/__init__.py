"""Figures of the docs."""
