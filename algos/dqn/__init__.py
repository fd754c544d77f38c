"""Deep Q-learning from a replay memory."""
