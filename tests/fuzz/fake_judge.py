"""Stands in for `judge`: accepts the first document, and does with the second what its argument says."""

import os
import signal
import sys


def main() -> None:
    """Speaks the lines of `judge`."""
    print('["?", "0"]\n["=", "0", "read", 0.1, 50]\n["?", "1"]', flush=True)
    if sys.argv[1] == "hang":
        signal.pause()
    os.abort()


if __name__ == "__main__":
    main()
