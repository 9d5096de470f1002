"""Proposals and early stops of a search, as functions of the trials before."""
