/* SPDX-License-Identifier: Apache-2.0 */
/* bid: asks what a peer would take for a request (policy/route/peer/bid.h), and compares it with what the answer showed. */
#pragma once
#include "policy/route/peer/bid.h"
#include "router/request/request/request.h"

struct gw_peer_model;

struct gw_bid {
	struct gw_peer *peer;
	struct gw_peer_model *model;
	bool open; /* The request may go there: it is worth it, and there is room. */
	struct peer_bid told;
};
/* The bids for a request, in its arena. */
struct gw_bids {
	size_t n;
	struct gw_bid v[];
};
/* Compute the time and the price of the request at the peer, whose answer is expected to have |answer|
 * tokens. */
struct gw_bid gw_bid_of(const struct gw_req *r, struct gw_peer *peer, struct gw_peer_model *model,
	uint64_t answer);

/* The head of the answer of the peer that |r| went to came, with its first byte if the answer is a stream. */
void gw_bid_begun(struct gw_req *r);
/* The answer has ended well: compare it with the bid. */
void gw_bid_settle(struct gw_req *r);
