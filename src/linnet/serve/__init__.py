"""Serving: from text to tokens and back."""
