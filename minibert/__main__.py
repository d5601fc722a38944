"""`python -m minibert COMMAND`."""

import sys

from minibert.cli import main

if __name__ == "__main__":
    sys.exit(main())
