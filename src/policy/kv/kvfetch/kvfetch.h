/* SPDX-License-Identifier: Apache-2.0 */
/* kvfetch: whether to fetch a block from a peer, from which one, when to ask another, and how much to serve.
 * Pure; time is an argument. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/who/rate/rate.h"

/* ---- distance ---- */
enum kvfetch_distance { KVFETCH_RACK, KVFETCH_REGION, KVFETCH_FAR, KVFETCH_DISTANCES };
struct kvfetch_place {
	struct cgn_str rack, region; /* Empty: not configured. */
};
/* RACK: both racks are set and equal, and the regions are equal. REGION: the regions are equal, or neither is
 * set. */
enum kvfetch_distance kvfetch_distance(const struct kvfetch_place *a, const struct kvfetch_place *b);
const char *kvfetch_distance_text(enum kvfetch_distance d); /* "rack", "region", "far" */

/* ---- time ---- */
/* Measurements of the path to a peer: moving averages over about eight fetches. The initial values are 1 ms
 * to the first byte and 100 MB/s, as on a 1 GbE network, so that a first fetch is tried when it could pay
 * off. */
struct kvfetch_path {
	double first_ms;     /* From the request to the first byte. */
	double bytes_per_ms; /* After the first byte. */
	uint64_t samples;
	uint64_t under_way; /* Bytes being fetched from the peer now. */
};
void kvfetch_path_init(struct kvfetch_path *p);
void kvfetch_path_first(struct kvfetch_path *p, double ms);
/* A connection to the peer is open: without samples, the first byte takes at least its round trip. */
void kvfetch_path_trip(struct kvfetch_path *p, double ms);
/* Values smaller than this do not count as samples of the rate. */
#define KVFETCH_RATE_BYTES ((uint64_t)64 * 1024)
void kvfetch_path_rate(struct kvfetch_path *p, uint64_t bytes, double ms);
/* Return first_ms + (under_way + bytes) / bytes_per_ms: fetches in flight go first. */
double kvfetch_ms(const struct kvfetch_path *p, uint64_t bytes);

/* ---- decision ---- */
struct kvfetch_ask {
	uint64_t bytes;      /* Bytes of the value; 0: unknown. */
	uint32_t tokens;     /* Tokens that the value covers. */
	double ms_per_token; /* Time the engine needs to compute a token; 0: unknown. */
	/* Total cost of not having the value; overrides tokens and ms_per_token. 0: unknown. */
	double budget_ms;
};
/* Return budget_ms, else tokens * ms_per_token; 0: unknown. */
double kvfetch_recompute_ms(const struct kvfetch_ask *a);
/* Return true when kvfetch_ms < kvfetch_recompute_ms, or when the cost of recomputing is unknown. */
bool kvfetch_worth(const struct kvfetch_path *p, const struct kvfetch_ask *a);
/* Return true when a fetched value is to be stored: there is room, or it was wanted at least twice recently.
 * Otherwise it is only handed over. */
bool kvfetch_keep(uint64_t budget_bytes, uint64_t used_bytes, uint64_t size, unsigned wanted);

/* ---- choice of peer ---- */
struct kvfetch_peer {
	enum kvfetch_distance distance;
	bool in_ram;         /* In RAM; otherwise on SSD. */
	cgn_nsec busy_until; /* When a busy or failed peer may be asked again; 0: now. */
	double ms;           /* kvfetch_ms of the peer. */
	bool tried;          /* Already asked for this block. */
};
/* Return the index of the best peer: not busy, then nearest, then in RAM, then fastest. Return |n| when none
 * is left. */
size_t kvfetch_choose(const struct kvfetch_peer *peers, size_t n, cgn_nsec now);
/* Return how long to wait for a byte before another peer is asked as well: eight times first_ms, at least 20
 * ms and at most 500 ms. */
cgn_nsec kvfetch_patience(const struct kvfetch_path *p);
/* Return how long to leave alone a peer that answered busy with |wait_ms|, or that failed |failures| times in
 * a row. */
cgn_nsec kvfetch_rest(uint32_t wait_ms, unsigned failures);

/* ---- serving: limits on streams and on bytes per second ---- */
struct kvfetch_egress {
	struct rate rate; /* In KiB. */
	uint64_t full_at; /* State of the token bucket. */
	unsigned streams, max_streams;
	uint64_t promised; /* Bytes admitted and not sent yet. */
};
/* Initialise. |bytes_per_second| 0: no limit. The bucket holds 20 ms of the rate and at least one piece, so
 * that over any time t at most rate * t + KVFETCH_EGRESS_PIECE + rate * 20 ms is granted. */
#define KVFETCH_EGRESS_PIECE ((uint64_t)128 * 1024)
void kvfetch_egress_init(struct kvfetch_egress *e, uint64_t bytes_per_second, unsigned max_streams);
/* Admit one more value of |bytes| for a peer that waits at most |budget_ms| (0: 2 s). When it returns false,
 * |*wait_ms| is when to ask again. */
bool kvfetch_egress_admit(struct kvfetch_egress *e, uint64_t bytes, uint32_t budget_ms, uint32_t *wait_ms);
/* Return how many of |want| bytes may be sent now, at most KVFETCH_EGRESS_PIECE; 0: try again after
 * |*wait|. */
uint64_t kvfetch_egress_take(struct kvfetch_egress *e, cgn_nsec now, uint64_t want, cgn_nsec *wait);
/* End an admitted value of which |unsent| bytes were not sent. */
void kvfetch_egress_end(struct kvfetch_egress *e, uint64_t unsent);
