"""Checks of the network, data and settings before training."""
