/* SPDX-License-Identifier: Apache-2.0 */
/* answerhome: which node's engine stored an answer of /v1/responses, so that a request that names the answer
 * (previous_response_id) goes there: no other engine knows it. The entries are in a prompttail_table, which
 * bounds them; an entry that was replaced, or a router that restarted, leaves the choice to the policy. */
#pragma once
#include "base/core/str.h"
#include "policy/route/routing/prompttail.h"

#define ANSWERHOME_ID_MAX 256  /* Bytes; longer ids are not remembered. */
#define ANSWERHOME_WITHIN 4096 /* The id stands within so many bytes from the beginning of an answer. */

/* Find the id in the beginning of an answer: the first "id" whose text begins with "resp", as in a whole
 * answer and in the first event of a stream. Borrowed from |data|; p NULL: there is none. */
struct cgn_str answerhome_id(struct cgn_str data);
/* The answer |id| that |model| gave. */
struct answerhome_of {
	struct cgn_str id, model;
};
/* Any thread. Record that the node in |slot|, whose id has the route_hash |node|, stored the answer. */
void answerhome_put(struct prompttail_table *t, struct answerhome_of of, uint16_t slot, uint64_t node);
/* Any thread. The slot of the node that stored the answer, and a part of its hash to compare by
 * answerhome_is. Not known under another model than the one that gave the answer. */
struct answerhome {
	bool known;
	uint16_t slot, print;
};
struct answerhome answerhome_get(const struct prompttail_table *t, struct answerhome_of of);
/* Return true unless another node has the slot by now. */
bool answerhome_is(const struct answerhome *h, uint16_t slot, uint64_t node);
