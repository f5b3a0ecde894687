/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/control/summaries.h"

#include <stdlib.h>

#include "router/shared/peers/peers.h"

struct router_summaries {
	struct router_tell *tell;
	struct router_ask *asks[CLUSTER_PEERS]; /* By place; NULL: not asked. */
};

CGN_RC router_summaries_open(struct router *r, struct cgn_err *err)
{
	struct gw_peers *peers = r->shared.peers;
	const cgn_nsec interval = r->cfg->router.federation.summary_interval;
	if (peers == NULL || interval == 0)
		return CGN_OK;
	struct router_summaries *s = r->summaries = CGN_NEW(struct router_summaries);
	for (size_t i = 0; i < peers->n; i++)
		if (peers->v[i].summaries != NULL && peers->v[i].url != NULL)
			CGN_TRY(router_ask_open(r, &peers->v[i], interval, &s->asks[i], err));
	s->tell = router_tell_open(r, interval);
	return CGN_OK;
}

void router_summaries_close(struct router *r)
{
	struct router_summaries *s = r->summaries;
	r->summaries = NULL;
	for (size_t i = 0; s != NULL && i < CLUSTER_PEERS; i++)
		router_ask_close(&s->asks[i]);
	if (s != NULL)
		router_tell_close(&s->tell);
	free(s);
}
