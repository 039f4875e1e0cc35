"""Digits from training to a served prediction."""
