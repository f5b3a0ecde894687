/* SPDX-License-Identifier: Apache-2.0 */
/* embedded and static: membership without a server. Embedded: the leases are timers in the router. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/cluster/state/files_priv.h"

#define BEGUN_MOST (10 * CGN_SEC) /* Agents see at once that a router ended, and look for it again. */

struct embedded {
	struct state_files files;
	cgn_nsec lease;
	struct cgn_timer timer; /* Fires when the next lease ends. */
	struct cgn_timer begun; /* Fires when each agent had time to announce itself after the start. */
	struct state_watch *s;
};

/* ---- leases ---- */

static void on_lease_end(struct cgn_timer *t)
{
	cgn_nsec next = state_leases_check(CGN_CONTAINER(t, struct embedded, timer)->s);
	if (next != 0)
		cgn_timer_set(t, next);
}

static void lease_renew(struct state_watch *s, struct roster_entry *e, uint64_t *lease_ms)
{
	struct embedded *own = s->own;
	e->lease = own->lease;
	e->lease_end = cgn_loop_listened(s->loop) + own->lease;
	if (own->timer.at == 0)
		cgn_timer_set(&own->timer, own->lease);
	*lease_ms = own->lease / CGN_MSEC;
}

static void on_begun(struct cgn_timer *t)
{
	state_knows(CGN_CONTAINER(t, struct embedded, begun)->s, STATE_HEARD);
}

/* ---- the backends ---- */

static void cordon_tell(void *arg, struct roster_entry *e)
{
	struct state_watch *s = arg;
	s->ops->on_cordon(s->user, e->id, true);
}

static void known_tell(struct state_watch *s)
{
	roster_each(&s->cordons, cordon_tell, s);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		if (s->documents[d].text.n > 0)
			state_document_tell(s, (enum state_document)d);
	state_connected(s, true, "");
}

static void address_add(struct state_watch *s, const char *text)
{
	if (roster_find(&s->nodes, text) != NULL)
		return;
	Cognitora__V1__Node *node = roster_add(&s->nodes, text)->node = CGN_NEW(Cognitora__V1__Node);
	cognitora__v1__node__init(node);
	node->id = cgn_str_dupz(cgn_str_of(text));
	node->address = cgn_str_dupz(cgn_str_of(text));
}

static void embedded_open(struct state_watch *s, const struct config *cfg)
{
	struct embedded *own = CGN_NEW(struct embedded);
	s->own = own;
	own->s = s;
	own->lease = cfg->cluster.lease;
	cgn_timer_init(&own->timer, s->loop, on_lease_end);
	cgn_timer_init(&own->begun, s->loop, on_begun);
	state_files_open(&own->files, s, cfg);
}

static void embedded_close(struct state_watch *s)
{
	struct embedded *own = s->own;
	if (own == NULL)
		return;
	cgn_timer_cancel(&own->timer);
	cgn_timer_cancel(&own->begun);
	state_files_close(&own->files);
	free(own);
}

/* Agents announce themselves again within a heartbeat, which is at most a third of the lease. Until then the nodes of an
 * earlier run count; without any, more nodes may come. */
static void embedded_begin(struct state_watch *s)
{
	struct embedded *own = s->own;
	known_tell(s);
	state_members_recall(s);
	if (s->n_recalled == 0)
		cgn_timer_set(&own->begun, own->lease / 2 < BEGUN_MOST ? own->lease / 2 : BEGUN_MOST);
}

static CGN_RC registry_open(struct state_watch *s, const struct config *cfg, struct cgn_err *err)
{
	(void)err;
	embedded_open(s, cfg);
	state_members_open(s, cfg, true);
	return CGN_OK;
}

static void file_cordon(struct state_watch *s, struct state_request *rq)
{
	state_files_cordon(&((struct embedded *)s->own)->files, s, rq);
}

static void file_put(struct state_watch *s, struct state_request *rq)
{
	state_files_put(&((struct embedded *)s->own)->files, s, rq);
}

static CGN_RC static_open(struct state_watch *s, const struct config *cfg, struct cgn_err *err)
{
	(void)err;
	embedded_open(s, cfg);
	for (size_t i = 0; i < cfg->cluster.nodes.n; i++)
		address_add(s, cfg->cluster.nodes.v[i]);
	return CGN_OK;
}

static void node_tell(void *arg, struct roster_entry *e)
{
	struct state_watch *s = arg;
	s->ops->on_node(s->user, e->node);
}

static void static_begin(struct state_watch *s)
{
	known_tell(s);
	roster_each(&s->nodes, node_tell, s);
	state_knows(s, STATE_HEARD);
}

const struct state_backend state_backend_embedded = {
	.where = "embedded",
	.open = registry_open,
	.begin = embedded_begin,
	.close = embedded_close,
	.cordon = file_cordon,
	.put = file_put,
	.renew = lease_renew,
};

const struct state_backend state_backend_static = {
	.where = "static, in its cluster.nodes",
	.open = static_open,
	.begin = static_begin,
	.close = embedded_close,
	.cordon = file_cordon,
	.put = file_put,
};
