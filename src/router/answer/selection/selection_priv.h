/* SPDX-License-Identifier: Apache-2.0 */
/* selection, inside: what a request for a selection asks. */
#pragma once
#include "policy/route/selection/selection.h"
#include "router/answer/selection/selection.h"

enum gw_select_op {
	SELECT_PICK,    /* POST /select */
	SELECT_RESERVE, /* POST /select_and_reserve */
	SELECT_CERTAIN  /* POST /reservations */
};

/* In the request's arena. */
struct gw_selecting {
	enum gw_select_op op;
	bool own;  /* The body is one of the selection API. */
	bool read; /* |ask| is filled in, and the body was replaced. */
	struct selection_ask ask;
	struct cgn_buf body; /* The body that takes the place of the client's, until it does. */
	struct cgn_err err;  /* Why the body is refused. */
	bool bad;
	void (*then)(struct gw_req *r); /* Goes on once the body was replaced. */
	size_t given;                   /* Bytes of the client's body, while it is not |own|. */
};

/* Return the address of the node's engine if the client may send requests there itself: an IP address and a port. Empty:
 * the node can't be chosen. */
struct cgn_str gw_select_endpoint(const struct gw_req *r, const struct view_node *n);
/* Name of the reservation of the request, or of the one whose id is |id|. */
struct gw_reservation_name gw_select_name(const struct gw_req *r, struct cgn_str id);
