"""Composition only: a flow reads like a table of contents."""
