"""`python -m algos.reinforce`."""

from algos.reinforce.train import main

main()
