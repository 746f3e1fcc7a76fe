"""Importance weights of criteria."""
