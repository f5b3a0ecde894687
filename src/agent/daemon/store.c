/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/daemon/store.h"

#include "base/log/log.h"
#include "cognitora/v1/kv.pb-c.h"
#include "policy/node/proto/proto.h"

#define STATS_TIMEOUT (2 * CGN_SEC)
/* The store may get its address after it is reachable, and gets another one with a restart. */
#define STATS_INTERVAL (5 * CGN_SEC)

/* ---- the address for peers ---- */

static void store_set_address(struct node_store *s, const char *quic, const char *grpc)
{
	if (strcmp(s->quic, quic) == 0 && strcmp(s->grpc, grpc) == 0)
		return;
	if (!cgn_str_copyz(s->quic, sizeof s->quic, cgn_str_of(quic)))
		s->quic[0] = '\0';
	if (!cgn_str_copyz(s->grpc, sizeof s->grpc, cgn_str_of(grpc)))
		s->grpc[0] = '\0';
	cgn_log(INFO, "kv.address", F_STR("quic", s->quic), F_STR("grpc", s->grpc), F_STR("rack", s->rack),
		F_STR("region", s->region));
	s->ops->address_changed(s->user);
}

static void on_store_stats(void *user, const struct grpc_unary_result *r)
{
	struct node_store *s = user;
	CGN_ON_EXIT(pb_free) Cognitora__V1__KvStatsResponse *st = NULL;
	s->asked = false;
	if (r->err->code == CGN_FINE &&
		cgn_ok(pb_unpack(&cognitora__v1__kv_stats_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &st, NULL)))
		store_set_address(s, st->quic_address, st->grpc_address);
}

static void on_store_timer(struct cgn_timer *t)
{
	struct node_store *s = CGN_CONTAINER(t, struct node_store, timer);
	cgn_timer_set(t, STATS_INTERVAL);
	if (s->asked || !s->ready)
		return;
	s->asked = cgn_ok(grpc_unary(s->stats, PROTO_KV "Stats", (struct cgn_str){"", 0}, STATS_TIMEOUT,
		on_store_stats, s, NULL));
}

/* ---- the connection ---- */

static void on_store_state(void *user, bool ready, const struct cgn_err *why)
{
	struct node_store *s = user;
	s->ready = ready;
	if (ready) {
		cgn_log(INFO, "kv.ready", F_STR("store", s->uds));
		cgn_timer_set(&s->timer, 0);
	} else {
		cgn_log(INFO, "kv.away", F_STR("store", s->uds), F_STR("why", why != NULL ? why->msg : ""),
			F_STR("then", "it is tried again"));
		store_set_address(s, "", "");
	}
	s->ops->ready(s->user, ready);
}

static void on_store_changes(void *user, bool reset, const struct block_change *changes, size_t n,
	bool synced)
{
	struct node_store *s = user;
	(void)synced;
	s->ops->changed(s->user, reset, changes, n);
}

/* ---- open and close ---- */

CGN_RC node_store_open(struct node_store *s, struct cgn_loop *l, const struct config *cfg,
	const struct node_store_ops *ops, void *user, struct cgn_err *err)
{
	const char *uds = cfg->agent.kv_uds;
	char addr[128];
	s->ops = ops;
	s->user = user;
	cgn_timer_init(&s->timer, l, on_store_timer);
	if (uds == NULL || uds[0] == '\0')
		return CGN_OK;
	(void)cgn_str_copyz(s->uds, sizeof s->uds, cgn_str_of(uds));
	(void)cgn_str_copyz(s->rack, sizeof s->rack, cgn_str_of(cfg->kv.rack != NULL ? cfg->kv.rack : ""));
	(void)cgn_str_copyz(s->region, sizeof s->region,
		cgn_str_of(cfg->kv.region != NULL ? cfg->kv.region : ""));
	(void)snprintf(addr, sizeof addr, "unix:%s", uds);
	const struct grpc_channel_cfg channel = {.addr = addr};
	CGN_TRY(grpc_channel_new(l, &channel, &s->stats, err));
	const struct kvclient_cfg client = {.uds = s->uds, .on_state = on_store_state, .user = s};
	s->client = kvclient_new(l, &client);
	kvclient_watch(s->client, on_store_changes, s);
	return CGN_OK;
}

void node_store_close(struct node_store *s)
{
	cgn_timer_cancel(&s->timer);
	kvclient_free(&s->client);
	grpc_channel_free(&s->stats);
}

void node_store_rewatch(struct node_store *s)
{
	if (s->client == NULL)
		return;
	kvclient_watch(s->client, NULL, NULL);
	kvclient_watch(s->client, on_store_changes, s);
}
