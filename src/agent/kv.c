/* SPDX-License-Identifier: Apache-2.0 */
/* The node's block store: one connection, one watch, for all engines; and where peers reach it, which the
 * node's description tells. */
#include "agent/slotmgr.h"
#include "base/log/log.h"
#include "cognitora/v1/kv.pb-c.h"

#define STATS_TIMEOUT (2 * CGN_SEC)
/* its address may come later than the store, and is another one after a restart */
#define STATS_INTERVAL (5 * CGN_SEC)

/* ---- where peers reach it ---- */

static void set_address(struct agent *a, const char *address)
{
	if (strcmp(a->kv_quic, address) == 0 ||
		!cgn_str_copyz(a->kv_quic, sizeof a->kv_quic, cgn_str_of(address)))
		return;
	cgn_log(INFO, "kv.address", F_STR("quic", a->kv_quic), F_STR("rack", a->kv_rack),
		F_STR("region", a->kv_region));
	agent_changed(a);
}

static void on_stats(void *user, const struct grpc_unary_result *r)
{
	struct agent *a = user;
	CGN_ON_EXIT(pb_free) Cognitora__V1__KvStatsResponse *st = NULL;
	CGN_LIVE(a, AGENT_TAG);
	a->kv_asked = false;
	if (r->err->code == CGN_FINE &&
		cgn_ok(pb_unpack(&cognitora__v1__kv_stats_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &st, NULL)))
		set_address(a, st->quic_address);
}

static void on_timer(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, kv_timer);
	CGN_LIVE(a, AGENT_TAG);
	cgn_timer_set(t, STATS_INTERVAL);
	if (a->kv_asked || !a->kv_ready)
		return;
	a->kv_asked = cgn_ok(grpc_unary(a->kv_stats, PROTO_KV "Stats", (struct cgn_str){"", 0}, STATS_TIMEOUT,
		on_stats, a, NULL));
}

/* ---- is it there? ---- */

static void on_state(void *user, bool ready, const struct cgn_err *why)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	a->kv_ready = ready;
	if (ready)
		cgn_log(INFO, "kv.ready", F_STR("store", a->kv_uds));
	else
		cgn_log(INFO, "kv.away", F_STR("store", a->kv_uds), F_STR("why", why != NULL ? why->msg : ""),
			F_STR("then", "it is tried again"));
	if (ready)
		cgn_timer_set(&a->kv_timer, 0);
	else
		set_address(a, "");
	for (size_t i = 0; i < a->n_engines; i++)
		slotmgr_store_ready(&a->engines[i], ready);
}

static void on_changes(void *user, bool reset, const struct block_change *changes, size_t n, bool synced)
{
	struct agent *a = user;
	(void)synced;
	CGN_LIVE(a, AGENT_TAG);
	for (size_t i = 0; i < a->n_engines; i++)
		slotmgr_store_changed(&a->engines[i], reset, changes, n);
}

/* ---- life ---- */

CGN_RC kv_open(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	const char *uds = cfg->agent.kv_uds;
	char addr[128];
	cgn_timer_init(&a->kv_timer, a->loop, on_timer);
	if (uds == NULL || uds[0] == '\0')
		return CGN_OK;
	(void)cgn_str_copyz(a->kv_uds, sizeof a->kv_uds, cgn_str_of(uds));
	(void)cgn_str_copyz(a->kv_rack, sizeof a->kv_rack,
		cgn_str_of(cfg->kv.rack != NULL ? cfg->kv.rack : ""));
	(void)cgn_str_copyz(a->kv_region, sizeof a->kv_region,
		cgn_str_of(cfg->kv.region != NULL ? cfg->kv.region : ""));
	(void)snprintf(addr, sizeof addr, "unix:%s", uds);
	const struct grpc_channel_cfg channel = {.addr = addr};
	CGN_TRY(grpc_channel_new(a->loop, &channel, &a->kv_stats, err));
	const struct kvclient_cfg client = {.uds = a->kv_uds, .on_state = on_state, .user = a};
	CGN_TRY(kvclient_new(a->loop, &client, &a->kv, err));
	kvclient_watch(a->kv, on_changes, a);
	return CGN_OK;
}

void kv_close(struct agent *a)
{
	cgn_timer_cancel(&a->kv_timer);
	kvclient_free(&a->kv);
	grpc_channel_free(&a->kv_stats);
}

void kv_watch_again(struct agent *a)
{
	if (a->kv == NULL)
		return;
	kvclient_watch(a->kv, NULL, NULL);
	kvclient_watch(a->kv, on_changes, a);
}
