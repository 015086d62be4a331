"""Supervised fine-tuning: ``demonstrations`` are read and graded, become ``tokens``, and ``run`` trains on them."""
