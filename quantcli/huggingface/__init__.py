"""Hugging Face folders as checkpoints, and checkpoints as Hugging Face folders.

A layer of its own, because it joins what must not know each other: files (`checkpoint`), the names
and numbers of an architecture (`arch`) and its vocabulary (`text`).
"""
