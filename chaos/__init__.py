"""A chaos run: the bank at full load on real processes, faults planned by a seed, and a checker.

``python -m chaos --minutes 30 --seed 7`` runs it; ``python -m chaos.checker DIRECTORY`` checks a finished run again.
"""
