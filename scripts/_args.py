# SPDX-License-Identifier: Apache-2.0
"""The command line of the Python scripts: --help prints the script's text, an unknown flag or a wrong number of words is an error (exit 2)."""
import pathlib, sys


def take(doc, flags=(), least=0, most=None):
    """Return (given flags, words). |flags|: the switches that the script knows; |most| None: any number of words."""
    given = [a for a in sys.argv[1:] if a.startswith("-")]
    words = [a for a in sys.argv[1:] if not a.startswith("-")]
    name = pathlib.Path(sys.argv[0]).name
    if name not in doc:
        doc = f"scripts/{name}: {doc[0].lower()}{doc[1:]}"
    if "-h" in given or "--help" in given:
        print(doc)
        sys.exit(0)
    wrong = next((f"there is no flag {f}" for f in given if f not in flags), None)
    if wrong is None and len(words) < least:
        wrong = "an argument is missing"
    if wrong is None and most is not None and len(words) > most:
        wrong = f"unexpected argument {words[most]!r}"
    if wrong:
        print(f"{name}: {wrong}\n\n{doc}", file=sys.stderr)
        sys.exit(2)
    return given, words
