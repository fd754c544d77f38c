"""Advantage actor-critic, synchronous, or off-policy with V-trace."""
