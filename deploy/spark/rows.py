"""Script for spark-submit: run `ping-llm rows build --engine spark` with the given arguments."""

import sys

from ping_llm.cli import main

if __name__ == "__main__":
    sys.argv = ["ping-llm", "rows", "build", "--engine", "spark", *sys.argv[1:]]
    main()
