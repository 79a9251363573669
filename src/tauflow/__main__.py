"""`python -m tauflow` is the command `tauflow`."""

from tauflow.cli.commands import main

main()
