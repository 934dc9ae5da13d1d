"""Reasoning by descent: puzzles whose answers must obey rules that the model learns from examples."""
