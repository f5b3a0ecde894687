# SPDX-License-Identifier: Apache-2.0
"""A relay between two UDP sockets that loses, delays, reorders, repeats and damages datagrams on demand;
needs no privileges."""
import heapq
import itertools
import random
import select
import socket
import threading
import time


class RoughWay(threading.Thread):
    """Carry datagrams to self.port to |to| and back, each with its own fate."""

    def __init__(self, to, loss=0.0, delay_s=(0.0, 0.0), repeat=0.0, damage=0.0, seed=1):
        super().__init__(daemon=True)
        self.to, self.loss, self.delay_s, self.repeat, self.damage = to, loss, delay_s, repeat, damage
        self.dice, self.turn = random.Random(seed), itertools.count()
        self.front = self.bound()
        self.port = self.front.getsockname()[1]
        self.ways, self.late = {}, []  # client: its socket; datagrams in flight
        self.carried = self.lost = self.damaged = 0
        self.closed = self.ended = False
        self.start()

    @staticmethod
    def bound():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        s.bind(("127.0.0.1", 0))
        s.setblocking(False)
        return s

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def close_way(self):
        """Drop everything silently from now on."""
        self.closed = True

    def end(self):
        self.ended = True
        self.join()
        for s in (self.front, *self.ways.values()):
            s.close()

    def carry(self, datagram, send):
        if self.closed or self.dice.random() < self.loss:
            self.lost += 1
            return
        if self.dice.random() < self.damage:
            self.damaged += 1
            at = self.dice.randrange(len(datagram))
            datagram = datagram[:at] + bytes([datagram[at] ^ 1 << self.dice.randrange(8)]) + datagram[at + 1:]
        for _ in range(2 if self.dice.random() < self.repeat else 1):
            heapq.heappush(self.late, (time.monotonic() + self.dice.uniform(*self.delay_s), next(self.turn), datagram, send))

    def take(self, s, send_of):
        for _ in range(256):
            try:
                datagram, client = s.recvfrom(65535)
            except OSError:
                return
            self.carried += 1
            self.carry(datagram, send_of(client))

    def forth(self, client):
        if client not in self.ways:
            self.ways[client] = self.bound()
            self.ways[client].connect(self.to)
        return self.ways[client].send

    def run(self):
        while not self.ended:
            wait = min(0.05, max(0.0, self.late[0][0] - time.monotonic())) if self.late else 0.05
            select.select([self.front, *self.ways.values()], [], [], wait)
            self.take(self.front, self.forth)
            for client, s in list(self.ways.items()):
                self.take(s, lambda _, client=client: lambda d: self.front.sendto(d, client))
            while self.late and self.late[0][0] <= time.monotonic():
                _, _, datagram, send = heapq.heappop(self.late)
                try:
                    send(datagram)
                except OSError:
                    pass  # a full buffer is a loss like any other
