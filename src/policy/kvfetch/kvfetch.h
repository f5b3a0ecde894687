/* SPDX-License-Identifier: Apache-2.0 */
/* kvfetch: is a block worth fetching from a peer, from which one, when to try another, and whom to serve.
 * Pure; time is an argument. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/limit/limit.h"

/* ---- how far ---- */
enum kvfetch_distance { KVFETCH_RACK, KVFETCH_REGION, KVFETCH_FAR, KVFETCH_DISTANCES };
struct kvfetch_place {
	struct cgn_str rack, region; /* empty: not told */
};
/* The same rack: both told, equal, and not in regions that differ. The same region: equal, also when neither
 * tells one. */
enum kvfetch_distance kvfetch_distance(const struct kvfetch_place *a, const struct kvfetch_place *b);
const char *kvfetch_distance_text(enum kvfetch_distance d); /* "rack", "region", "far" */

/* ---- how long ---- */
/* What was measured of the way to a peer: moving averages over the last eight fetches or so. Before the
 * first: 1 ms to the first byte and 100 MB/s, what a 1 GbE network does, so that a first fetch is tried when
 * it is not hopeless. */
struct kvfetch_path {
	double first_ms;     /* from the request to the first byte */
	double bytes_per_ms; /* from then on */
	uint64_t samples;
	uint64_t under_way; /* bytes that are being fetched from it now */
};
void kvfetch_path_init(struct kvfetch_path *p);
void kvfetch_path_first(struct kvfetch_path *p, double ms);
/* A value below KVFETCH_RATE_BYTES says nothing of a rate and is not counted. */
#define KVFETCH_RATE_BYTES ((uint64_t)64 * 1024)
void kvfetch_path_rate(struct kvfetch_path *p, uint64_t bytes, double ms);
/* first_ms + (under_way + bytes) / bytes_per_ms: what is fetched from it already goes first. */
double kvfetch_ms(const struct kvfetch_path *p, uint64_t bytes);

/* ---- whether ---- */
struct kvfetch_ask {
	uint64_t bytes;      /* of the value; 0: not known */
	uint32_t tokens;     /* that it stands for */
	double ms_per_token; /* that its engine needs to compute them; 0: not told */
	/* what not having it costs, all told; beats tokens and ms_per_token; 0: not told */
	double budget_ms;
};
/* budget_ms, else tokens * ms_per_token; 0: nobody told. */
double kvfetch_recompute_ms(const struct kvfetch_ask *a);
/* kvfetch_ms < kvfetch_recompute_ms, or nobody told what recomputing costs. */
bool kvfetch_worth(const struct kvfetch_path *p, const struct kvfetch_ask *a);
/* What was fetched stays when there is room for it, or when it was wanted at least twice of late; else it is
 * handed over once. */
bool kvfetch_keep(uint64_t budget_bytes, uint64_t used_bytes, uint64_t size, unsigned wanted);

/* ---- from whom ---- */
struct kvfetch_peer {
	enum kvfetch_distance distance;
	bool in_ram;         /* else on SSD */
	cgn_nsec busy_until; /* it said so, or failed; 0: no */
	double ms;           /* kvfetch_ms */
	bool tried;          /* for this block: not again */
};
/* The nearest; of those in RAM before on SSD; of those the fastest. Whoever is busy comes last. |n|: nobody
 * is left. */
size_t kvfetch_choose(const struct kvfetch_peer *peers, size_t n, cgn_nsec now);
/* After so long without a byte another peer is asked as well: eight times what a first byte takes, 20 ms to
 * 500 ms. */
cgn_nsec kvfetch_patience(const struct kvfetch_path *p);
/* Leave a peer alone that said it is busy, or failed |failures| times in a row. */
cgn_nsec kvfetch_rest(uint32_t wait_ms, unsigned failures);

/* ---- serving: so many streams, so many bytes a second ---- */
struct kvfetch_egress {
	struct limit_rate rate; /* in KiB */
	uint64_t full_at;       /* of the bucket */
	unsigned streams, max_streams;
	uint64_t promised; /* bytes that were admitted and not sent */
};
/* |bytes_per_second| 0: no limit. The bucket holds what goes in 20 ms, and a piece at least: over any time t
 * no more is granted than rate * t + KVFETCH_EGRESS_PIECE + rate * 20 ms. */
#define KVFETCH_EGRESS_PIECE ((uint64_t)128 * 1024)
void kvfetch_egress_init(struct kvfetch_egress *e, uint64_t bytes_per_second, unsigned max_streams);
/* May one more value of |bytes| be sent to somebody who waits |budget_ms| (0: 2 s) for it? If not, |*wait_ms|
 * is when to ask again. */
bool kvfetch_egress_admit(struct kvfetch_egress *e, uint64_t bytes, uint32_t budget_ms, uint32_t *wait_ms);
/* How many of |want| bytes may go now; 0: look again after |*wait|. At most KVFETCH_EGRESS_PIECE at once. */
uint64_t kvfetch_egress_take(struct kvfetch_egress *e, cgn_nsec now, uint64_t want, cgn_nsec *wait);
void kvfetch_egress_end(struct kvfetch_egress *e, uint64_t unsent); /* of one that was admitted */
