/* SPDX-License-Identifier: Apache-2.0 */
/* heartbeat: are the clusters there that requests may leave for? */
#include <stdlib.h>

#include "router/control/control/heartbeat.h"

#include "base/log/log.h"
#include "base/weburl/weburl.h"
#include "io/wire/webask/webask.h"
#include "joint/web/webclient/webclient.h"
#include "policy/route/peer/beat.h"
#include "router/control/control/router.h"
#include "router/shared/peers/peers.h"

#define BEAT_BYTES 1024

struct router_heartbeat {
	struct router *r;
	struct gw_peer *peer; /* NULL: not asked */
	struct http_client *client;
	struct weburl url;
	struct webask *fetch;
	struct cgn_timer timer;
	cgn_nsec asked_at;
};

static void rtt_learn(struct gw_peer *p, cgn_nsec sample)
{
	cgn_nsec rtt = atomic_load_explicit(&p->rtt, memory_order_relaxed);
	atomic_store_explicit(&p->rtt, peer_rtt_learn(rtt, sample), memory_order_relaxed);
}

static void beat_found(struct router_heartbeat *b)
{
	rtt_learn(b->peer, cgn_since(cgn_loop_now(b->r->loop), b->asked_at));
	if (atomic_exchange(&b->peer->lost, false))
		cgn_log(INFO, "router.peer_back", F_STR("peer", b->peer->name));
}

/* Calls that are under way fail: attempts look at the pulse. */
static void beat_lost(struct router_heartbeat *b, const char *why)
{
	const struct pulse *pulse = &b->r->shared.choice.stats[b->peer->slot].pulse;
	if (!atomic_load(&b->peer->lost) && !peer_is_silent(cgn_loop_now(b->r->loop), pulse_heard(pulse)))
		return;
	pulse_stop(&b->r->shared.choice.stats[b->peer->slot].pulse, cgn_loop_now(b->r->loop));
	if (!atomic_exchange(&b->peer->lost, true))
		cgn_log(WARN, "router.peer_lost", F_STR("peer", b->peer->name), F_STR("url", b->peer->url),
			F_STR("why", why), F_STR("then", "no request leaves for it until it answers"));
}

static void on_answer(void *user, const struct webask_answer *a)
{
	struct router_heartbeat *b = user;
	b->fetch = NULL;
	if (webask_is_ok(a))
		beat_found(b);
	else if (!a->stale)
		beat_lost(b, a->err->code != CGN_FINE ? a->err->msg : "it answers with an error");
	cgn_timer_set(&b->timer, a->stale ? 1 : PEER_BEAT_EVERY);
}

static void on_beat(struct cgn_timer *t)
{
	struct router_heartbeat *b = CGN_CONTAINER(t, struct router_heartbeat, timer);
	const struct webask_endpoint to = {.client = b->client, .url = &b->url};
	const struct webask_question ask = {.path = "/healthz",
		.max_bytes = BEAT_BYTES,
		.timeout = PEER_BEAT_TIMEOUT};
	struct cgn_err err;
	b->asked_at = cgn_loop_now(b->r->loop);
	if (cgn_ok(webask_start(b->r->loop, &to, &ask, on_answer, b, &b->fetch, &err)))
		return;
	b->fetch = NULL;
	beat_lost(b, err.msg);
	cgn_timer_set(&b->timer, PEER_BEAT_EVERY);
}

CGN_RC router_heartbeat_open(struct router *r, struct cgn_err *err)
{
	struct gw_peers *peers = r->shared.peers;
	if (peers == NULL)
		return CGN_OK;
	r->heartbeats = CGN_NEW_ARRAY(struct router_heartbeat, peers->n);
	for (size_t i = 0; i < peers->n; i++) {
		struct router_heartbeat *b = &r->heartbeats[i];
		const struct webclient_cfg cfg = {.url = peers->v[i].url,
			.tls = peers->v[i].tls,
			.max_conns = 1,
			.connect_timeout = PEER_BEAT_TIMEOUT};
		if (!gw_peer_is_cluster(&peers->v[i]) || peers->v[i].url == NULL)
			continue;
		CGN_TRY(webclient_open(r->loop, &cfg, &b->url, &b->client, err));
		b->r = r;
		b->peer = &peers->v[i];
		atomic_store(&b->peer->lost, true); /* until it answers */
		cgn_timer_init(&b->timer, r->loop, on_beat);
		cgn_timer_set(&b->timer, 1);
	}
	return CGN_OK;
}

void router_heartbeat_close(struct router *r)
{
	for (size_t i = 0; r->heartbeats != NULL && i < r->shared.peers->n; i++) {
		struct router_heartbeat *b = &r->heartbeats[i];
		if (b->peer == NULL)
			continue;
		cgn_timer_cancel(&b->timer);
		webask_cancel(&b->fetch);
		http_client_free(&b->client);
	}
	free(r->heartbeats);
	r->heartbeats = NULL;
}
