# SPDX-License-Identifier: Apache-2.0
"""Block stores of several sites: each with its own CA, and a port for each other site."""
import struct

from cluster import ask, free_port
from kvbulk import GET, INFOS, LOOKUP, PEERS, PUT, WATCH, Bulk, Info
from kvpeers import REMOTE, Peer, bootstrap

TENANT = 128


def site_of(admin, name="west"):
    """What the store with this admin port says of a site."""
    return {s["name"]: s for s in ask(admin, "GET", "/peers").json()["sites"]}[name]


class SiteStore(Peer):
    """A store with a port for the other sites; values have tenants."""

    def __init__(self, folder, pki, name, doors, sites, **kv):
        self.doors = doors
        sections = {f'kv_sites."{other}"': {k: v for k, v in keys.items() if v is not None} for other, keys in sites.items()}
        super().__init__(folder, pki, name, sections=sections, **kv)

    def site(self, name):
        return site_of(self.admin, name)

    def put_for(self, tenant, k, value, model="llama-8b", **more):
        lead = struct.pack("<H", len(tenant)) + tenant.encode() if tenant else b""
        with Bulk(self.bulk, hello=False) as c:
            c.hello(2)
            got, _, count, body, _ = c.ask(PUT, lead + c.put_body(k, len(value), value, model=model, **more), TENANT if tenant else 0)
            assert got == INFOS and count == 1
            return Info(body)

    def get_for(self, tenant, k, budget_ms=0):
        """Return (value, model)."""
        lead = struct.pack("<H", len(tenant)) + tenant.encode() if tenant else b""
        with Bulk(self.bulk, hello=False) as c:
            c.hello(2)
            v = c.value(c.ask(GET, lead + k, PEERS | (TENANT if tenant else 0), budget_ms=budget_ms))
            return v.read(), v.model

    def tiers_for(self, tenant, k):
        lead = struct.pack("<H", len(tenant)) + tenant.encode() if tenant else b""
        with Bulk(self.bulk, hello=False) as c:
            c.hello(2)
            got, _, count, body, _ = c.ask(LOOKUP, lead + k, PEERS | (TENANT if tenant else 0), count=1)
            assert got == INFOS and count == 1
            return Info(body).tiers

    def hears_of(self, tenant, k):
        return self.tiers_for(tenant, k) & REMOTE

    def holds(self):
        """The keys that this store has, by its own listing."""
        with Bulk(self.bulk) as c:
            c.send(WATCH)
            keys, synced = set(), False
            while not synced:
                _, synced, rows = c.changes()
                keys |= {k for k, tiers, _ in rows if tiers}
            return keys


class Sites:
    """Sites "east" and "west" of one store each, "a" and "b", which know each other."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        self.pki = {"east": bootstrap(folder / "east", "a", "a2"), "west": bootstrap(folder / "west", "b", "b2", "ops=operator", "router")}
        self.door = {"a": free_port(), "b": free_port()}

    def start(self, name, site, other, to=None, door=None, near=(), **more):
        """A store of |site| that knows |other|; |to|: stores there, by name; |near|: of kv.peers."""
        lists = {k: more.pop(k) for k in ("tenants", "models", "ca_file", "node_name") if k in more}
        door = self.door.get(name) if door is None else door
        peers = [f"127.0.0.1:{self.door[p]}" for p in (to or [])]
        keys = {"ca_file": f"{self.pki[other]}/ca.pem", "listen": f"127.0.0.1:{door}" if door else None, "peers": peers, **lists}
        p = SiteStore(self.folder, self.pki[site], name, self.door, {other: keys}, peers=near, **more)
        self.stack.callback(p.close)
        return p
