"""`python -m algos.dqn`."""

from algos.dqn.train import main

main()
