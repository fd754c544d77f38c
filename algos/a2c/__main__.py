"""`python -m algos.a2c`."""

from algos.a2c.train import main

main()
