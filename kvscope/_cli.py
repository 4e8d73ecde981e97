"""
Console entry of the installed package.

The rooms (`scoring`, `collectors`, ...) are top-level names in a checkout. In a wheel they lie inside this
package, so that nothing generic lands in site-packages; this file puts the folder that holds them on the path.
"""

import sys
from pathlib import Path


def main() -> int:
    """Run the `kvscope` command and return its exit status."""
    here = Path(__file__).resolve().parent
    rooms = here if (here / "cli.py").exists() else here.parent
    sys.path.insert(0, str(rooms))
    import cli

    return int(cli.main())


if __name__ == "__main__":
    raise SystemExit(main())
