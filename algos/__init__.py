"""Readable algorithms, one folder each, and beside them the parts that they share.

Read an algorithm's `train.py` first, then its `agent.py`. Copy the folder to change it.
"""
