"""Measuring models: how fast they are."""
