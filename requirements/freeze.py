"""Prints the pins of the running environment: all but creditjax, installers and what needs a compiler."""

import importlib.metadata
import pathlib
import re

OPTIONAL = pathlib.Path(__file__).parent / "optional.txt"


def main() -> None:
    """One `name==version` a line, sorted."""
    left_out = {
        "creditjax",
        "pip",
        "setuptools",
        "wheel",
        *re.findall(r"^([a-z-]+)==", OPTIONAL.read_text(), re.MULTILINE),
    }
    found = {re.sub(r"[-_.]+", "-", d.name).lower(): d.version for d in importlib.metadata.distributions()}
    print("# Written by `make pins`.")
    for name in sorted(set(found) - left_out):
        print(f"{name}=={found[name]}")


if __name__ == "__main__":
    main()
