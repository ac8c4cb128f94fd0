"""``torchrun --nproc-per-node=P -m custom_inference.distributed MODEL FILE -k K ...``: ``ppl fit`` in a group.

Takes the arguments of ``ppl fit``. Every process reads the file and keeps its part of the rows; the first one writes.
"""

from __future__ import annotations

import sys

from custom_inference.faces.command_line.app import app


def main() -> None:
    """The entry point."""
    app(["fit", *sys.argv[1:]], prog_name="torchrun -m custom_inference.distributed")


if __name__ == "__main__":
    main()
