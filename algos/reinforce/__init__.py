"""REINFORCE with a baseline."""
