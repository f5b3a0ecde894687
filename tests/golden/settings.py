# SPDX-License-Identifier: Apache-2.0
"""The settings of a version, from its generated reference: "SECTION KEY DEFAULT" for each."""
import pathlib
import re
import sys


def settings(reference):
    """Return {(section, key): default} of docs/reference/configuration.md."""
    found, section = {}, None
    for line in pathlib.Path(reference).read_text().splitlines():
        if head := re.match(r"## `\[(.+?)\]`", line):
            section = head[1]
        elif row := re.match(r"\| \[?`(\w+)`(?:\]\([^)]*\))? \| (.*?) \|", line):
            found[section, row[1]] = row[2]
    return found


if __name__ == "__main__":
    for (section, key), preset in settings(sys.argv[1]).items():
        print(section, key, preset)
