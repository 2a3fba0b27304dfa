"""`python -m pgmip.cli` is `pgmip`."""

from . import main

main()
