# SPDX-License-Identifier: Apache-2.0
"""scripts/check-includes finds each wrong form of an include: all are planted in one copy of src/. And scripts/gen-rooms finds a room of
which no line says what it is for."""
import shutil
import subprocess

import pytest

from cluster import ROOT

pytestmark = pytest.mark.plain
RATE, KEYS = "src/policy/who/rate", "src/policy/config"
AFTER = "policy/config may include only groups before it in scripts/groups, and policy/who stands after it"
SUFFIXES = (".c", ".h", ".def", ".inc", ".cpp")
WRONG = [
    (RATE, '#include "io/net/net/net.h"', ["includes io/net/net/net.h: policy may not include io"]),
    (RATE, '  #  include  "io/net/net/net.h" // why', ["includes io/net/net/net.h: policy may not include io"]),
    (RATE, '#include "../../../io/net/net/net.h"',
     ['includes ../../../io/net/net/net.h: write "io/net/net/net.h", the path from src/', "includes ../../../io/net/net/net.h: policy may not include io"]),
    (RATE, "#include <io/net/net/net.h>",
     ['includes io/net/net/net.h: write "io/net/net/net.h", in quotes', "includes io/net/net/net.h: policy may not include io"]),
    (RATE, '#include "src/io/net/net/net.h"',
     ['includes src/io/net/net/net.h: write "io/net/net/net.h", the path from src/', "includes src/io/net/net/net.h: policy may not include io"]),
    (RATE, '#include "who/auth/auth.h"', ['includes who/auth/auth.h: write "policy/who/auth/auth.h", the path from src/']),
    (RATE, '#include "./rate.h"', ['includes ./rate.h: write "policy/who/rate/rate.h", the path from src/']),
    (RATE, '#include "base/core/../core/str.h"', ['includes base/core/../core/str.h: write "base/core/str.h", the path from src/']),
    (RATE, "#include <base/core/str.h>", ['includes base/core/str.h: write "base/core/str.h", in quotes']),
    (RATE, "#include NET", ['write #include "FILE" or #include <FILE>']),
    (RATE, '#include_next "io/net/net/net.h"', ['write #include "FILE" or #include <FILE>']),
    (RATE, '#include /* here */ "io/net/net/net.h"', ['write #include "FILE" or #include <FILE>']),
    (RATE, '#include "../auth/auth_priv.h"',
     ['includes ../auth/auth_priv.h: write "policy/who/auth/auth_priv.h", the path from src/', "includes ../auth/auth_priv.h: another folder's private header"]),
    (RATE, '#include "policy/who/auth/auth_priv.h"', ["includes policy/who/auth/auth_priv.h: another folder's private header"]),
    (KEYS, '#include "policy/who/rate/rate.h"', [f"includes policy/who/rate/rate.h: {AFTER}"]),
    ("src/base/core", '#include "policy/config/config.h"', ["includes policy/config/config.h: base may not include policy"]),
    ("src/agent", '#include "router/answer/client/gateway.h"', ["includes router/answer/client/gateway.h: agent may not include router"]),
    ("src/router", '#include "lab/gpu/gpu.h"', ["includes lab/gpu/gpu.h: router may not include lab"]),
    ("src/policy", '#include "io/net/net/net.h"', ["includes io/net/net/net.h: policy may not include io"]),
]
RIGHT = ['#include "rate.h"', '#include "policy/who/rate/rate.h"', '#include "policy/config/config.h"', "#include <string.h>", "#include <sys/stat.h>",
         '/* #include "io/net/net/net.h" */']


def checked(tree):
    """Return what the check prints of the tree; nothing: it finds no fault."""
    done = subprocess.run([tree / "scripts/check-includes"], capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == done.stdout.startswith("includes: "), done.stdout + done.stderr
    return [] if done.returncode == 0 else done.stdout.splitlines()


def copy_of_source(to):
    shutil.copytree(ROOT / "src", to / "src")
    (to / "scripts").mkdir()
    for name in ("check-includes", "gen-rooms", "_args.py", "_rooms.py", "groups"):
        shutil.copy(ROOT / "scripts" / name, to / "scripts" / name)
    return to


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the check prints of a tree with all wrong and all right includes, each in a file of its own."""
    tree = copy_of_source(tmp_path_factory.mktemp("tree"))
    for n, (folder, line, _) in enumerate(WRONG):
        (tree / folder / f"wrong{n}{SUFFIXES[n % len(SUFFIXES)]}").write_text(f"\n{line}\n")
    for n, line in enumerate(RIGHT):
        (tree / RATE / f"right{n}.c").write_text(f"{line}\n")
    return checked(tree)


@pytest.mark.parametrize("n", range(len(WRONG)), ids=[line for _, line, _ in WRONG])
def test_a_wrong_include_is_a_line_for_each_fault(found, n):
    folder, _, says = WRONG[n]
    file = f"{folder}/wrong{n}{SUFFIXES[n % len(SUFFIXES)]}"
    assert [line for line in found if line.startswith(file)] == [f"{file}:2: {text}" for text in says]


def test_a_right_include_is_no_line(found):
    assert len(found) == sum(len(says) for _, _, says in WRONG), "\n".join(found)


def test_a_cycle_is_told_once_with_the_places_of_its_includes(tmp_path):
    tree = copy_of_source(tmp_path)
    (tree / "src/base/core/planted.c").write_text('#include "base/json/json.h"\n')
    (line,) = checked(tree)
    assert line.startswith("cycle: base/")
    assert "base/core includes base/json (src/base/core/planted.c:1)" in line and "base/json includes base/core (src/base/json/" in line


@pytest.mark.parametrize("name, text, silent", [
    ("cellar.h", "/* cellar: keeps wine. */", False),
    ("wine.h", "/* cellar, the room: keeps wine. */", False),
    ("wine.h", "/* wine: bottles. */", True),
    ("cellar_priv.h", "struct bottle; /* kept here */", True),
])
def test_a_room_says_what_it_is_for(tmp_path, name, text, silent):
    tree = copy_of_source(tmp_path)
    (tree / "src/base/cellar").mkdir()
    (tree / "src/base/cellar" / name).write_text(f"/* SPDX-License-Identifier: Apache-2.0 */\n{text}\n")
    (tree / "docs/reference").mkdir(parents=True)
    done = subprocess.run([tree / "scripts/gen-rooms"], capture_output=True, text=True, timeout=60)
    page = tree / "docs/reference/rooms.md"
    if silent:
        assert (done.returncode, page.exists()) == (1, False)
        assert done.stderr.startswith("src/base/cellar: no line says what the room is for: ")
    else:
        assert done.returncode == 0 and "| `cellar` | keeps wine |" in page.read_text()
