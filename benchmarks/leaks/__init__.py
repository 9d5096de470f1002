"""Planted leaks and honest splits, audited by this project and its peers: leaks found and false
findings of each.
"""
