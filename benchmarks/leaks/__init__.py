"""Planted leaks and honest splits, audited by this project and by its peers: what each finds, and
how often each cries wolf.
"""
