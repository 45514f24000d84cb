"""Checkpoint -> bundle: `python -m budgetvdr.export CHECKPOINT --depths 4,9,18 --out DIR`."""
