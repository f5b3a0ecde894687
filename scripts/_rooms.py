"""The rooms of src/: folders with code, in the groups of scripts/groups."""
import pathlib, re

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
CODE = {".c", ".h", ".cpp", ".def"}


def groups():
    """[(folder, sentence)], the lowest first."""
    lines = (ROOT / "scripts/groups").read_text().splitlines()
    return [tuple(l.split(None, 1)) for l in lines if l and l[0] != "#"]


def rooms():
    """All folders of src/ that have code themselves, as "policy/who/limit"."""
    return sorted({f.parent.relative_to(SRC).as_posix() for f in SRC.rglob("*") if f.suffix in CODE})


def sentence(room):
    """The first sentence of the room's header, which is its contract; of its largest file where it has none of its name."""
    folder = SRC / room
    own = [folder / (folder.name + ".h"), folder / (folder.name + "_priv.h")]
    rest = sorted((f for f in folder.iterdir() if f.suffix in {".h", ".c"}), key=lambda f: (f.suffix != ".h", -f.stat().st_size))
    for f in [o for o in own if o.exists()] + rest:
        m = re.search(r"/\* (?!SPDX)(.*?)\*/", f.read_text(), re.S)
        if m:
            text = re.sub(r"[ \t]*\n \* ?", " ", re.split(r"\n \*(?: {3,}| *\n)", m.group(1), maxsplit=1)[0]).strip()
            return re.split(r"(?<=\.)\s+(?=[A-Z])", re.sub(r"^[\w ,]+: ", "", text), maxsplit=1)[0].rstrip(".:")
    return ""
