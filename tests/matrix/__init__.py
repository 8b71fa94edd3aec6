"""The crash matrix: one full ticket on the real CLI, killed at every moment in three ways.

Each is compared with an undisturbed one. `python -m tests.matrix` plays it; docs/crash-matrix.md is what came of it.
"""
