"""A chaos run: the bank at full load on real processes, faults that a seed plans, and a checker that judges.

``python -m chaos --minutes 30 --seed 7`` runs it; ``python -m chaos.checker DIRECTORY`` judges a finished run again.
"""
