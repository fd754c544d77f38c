"""Advantage actor-critic, in step or off-policy with V-trace."""
