# SPDX-License-Identifier: Apache-2.0
"""The report of a soak as a page."""
import datetime


def rows(head, lines):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(map(str, line)) + " |" for line in lines), ""]


def words(counts):
    return ", ".join(f"{name} {n:,}" for name, n in counts.items()) or "none"


def page(r):
    began = datetime.datetime.fromtimestamp(r["began_unix"], datetime.timezone.utc)
    q, b = r["requests"], r["batches"]
    sorts = {}
    for v in r["violations"]:
        sorts[v["kind"]] = sorts.get(v["kind"], 0) + 1
    out = [f"# A soak of {r['minutes']:.0f} minutes", "",
           f"{len(r['violations'])} violations" + (f": {words(sorts)}." if sorts else ".") + ("" if r["whole"] else " The run is not over."), ""]
    out += rows(("", ""), [
        ("command", f"`scripts/soak --minutes {r['asked_minutes']:g} --seed {r['seed']}`"), ("date", f"{began:%Y-%m-%d}"), ("commit", r["commit"]),
        ("machine", f"{r['cores']} cores, Linux {r['kernel'].split('-')[0]}, etcd: {'yes' if r['etcd'] else 'no'}, Redis: {'yes' if r['redis'] else 'no'}, "
                    f"netem: {'yes' if r['netem'] else 'no'}"),
        ("rounds, rests", f"{r['rounds']}, {r['rests']}; the longest way to rest took {r['longest_way_to_rest_s']:g} s"),
        ("requests", f"{q['sent']:,} sent: " + words({k: v for k, v in q.items() if k != "sent"})),
        ("refusals", words(r["refusals"])),
        ("counted exactly at rest", f"{r['counted_exactly']:,} requests"),
        ("batches", f"{b['over']:,} of {b['made']:,} over, {b['lines']:,} lines; {b['not_taken']:,} not taken"),
        ("tokens answered", words(r["tokens_answered"])),
        ("tokens that kills may have made forgotten", f"{r['tokens_forgiven']:,}"),
        ("faults", words(r["faults"])), ("killed", words(r["kills"])),
        ("nodes that came and went", f"{r['nodes_churned']:,}"), ("adapters", f"{r['adapters']:,}")])
    out += ["Memory between rests, behind the warm-up, in KiB of private pages:", ""]
    out += rows(("program", "life", "rests", "hours", "first third", "last third", "% an hour", "descriptors", "threads"),
                [(m["program"], m["life"], m["samples"], f"{m['hours']:.2f}", f"{m['first_kib']:.0f}", f"{m['last_kib']:.0f}", f"{m['percent_an_hour']:+.2f}",
                  " to ".join(f"{n:g}" for n in m["descriptors"]), " to ".join(f"{n:g}" for n in m["threads"])) for m in r["memory"]])
    out += ["At the last rest:", ""]
    out += rows(("program", "lives", "private KiB", "resident KiB", "descriptors", "threads"),
                [(name, p["lives"], p["private_kib"], p["rss_kib"], p["descriptors"], p["threads"]) for name, p in r["last"].items()])
    out += ["Log events at level warn or error:", ""]
    out += rows(("program", "level", "event", "times"), [(*name.split(), f"{n:,}") for name, n in r["logs"].items()])
    if r["violations"]:
        out += ["Violations:", "", *(f"- {v['at_s']:g} s, {v['kind']}: {v['text'][:500]} (faults: {'; '.join(v['faults']) or 'none'})" for v in r["violations"]), ""]
    return "\n".join(out)
