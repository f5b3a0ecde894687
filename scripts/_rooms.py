"""The rooms of src/: folders with code, in the groups of scripts/groups."""
import pathlib, re

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
CODE = {".c", ".h", ".cpp", ".def"}


def groups():
    """[(folder, sentence)], in the order of the list: a group may include those before it."""
    lines = (ROOT / "scripts/groups").read_text().splitlines()
    return [tuple(l.split(None, 1)) for l in lines if l and l[0] != "#"]


def rooms():
    """All folders of src/ that have code themselves, as "policy/who/rate"."""
    return sorted({f.parent.relative_to(SRC).as_posix() for f in SRC.rglob("*") if f.suffix in CODE})


def first(text):
    """The first sentence of a comment, without the name that it begins with."""
    text = re.sub(r"[ \t]*\n \* ?", " ", re.split(r"\n \*(?: {3,}| *\n)", text, maxsplit=1)[0]).strip()
    return re.split(r"(?<=\.)\s+(?=[A-Z])", re.sub(r"^[\w ,]+: ", "", text), maxsplit=1)[0].rstrip(".:")


def sentence(room):
    """The first sentence about a room: of a comment that begins "NOUN, the room:" in one of its files, else of the file of its name; "": there
    is neither."""
    folder = SRC / room
    for f in sorted(folder.iterdir()):
        m = f.suffix in CODE and re.search(rf"/\* {folder.name}, the room: (.*?)\*/", f.read_text(), re.S)
        if m:
            return first("room: " + m[1])
    for name in (f"{folder.name}.h", f"{folder.name}_priv.h", f"{folder.name}.c"):
        m = (folder / name).exists() and re.search(rf"/\* ({folder.name}(?:, inside)?: .*?)\*/", (folder / name).read_text(), re.S)
        if m:
            return first(m[1])
    return ""
