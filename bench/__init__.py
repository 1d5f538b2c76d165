"""Measurements: programs to run by hand, and `python -m bench.run`. Nothing imports them."""
