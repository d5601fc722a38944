"""`python -m minibert COMMAND`."""

import sys

from minibert.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
