/* SPDX-License-Identifier: Apache-2.0 */
/* The node's block store: one connection, one watch, for all engines. */
#include "agent/keep.h"
#include "base/log/log.h"

static void on_state(void *user, bool ready, const struct cgn_err *why)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	a->kv_ready = ready;
	if (ready)
		cgn_log(INFO, "kv.ready", F_STR("store", a->kv_uds));
	else
		cgn_log(INFO, "kv.away", F_STR("store", a->kv_uds), F_STR("why", why != NULL ? why->msg : ""), F_STR("then", "it is tried again"));
	for (size_t i = 0; i < a->n_engines; i++)
		keep_store_ready(&a->engines[i], ready);
}

static void on_changes(void *user, bool reset, const struct kv_change *changes, size_t n, bool synced)
{
	struct agent *a = user;
	CGN_LIVE(a, AGENT_TAG);
	for (size_t i = 0; i < a->n_engines; i++)
		keep_store_told(&a->engines[i], reset, changes, n, synced);
}

CGN_RC kv_open(struct agent *a, const struct config *cfg, struct cgn_err *err)
{
	const char *uds = cfg->agent.kv_uds;
	if (uds == NULL || uds[0] == '\0')
		return CGN_OK;
	(void)cgn_str_copyz(a->kv_uds, sizeof a->kv_uds, cgn_str_of(uds));
	const struct kvclient_cfg client = {.uds = a->kv_uds, .on_state = on_state, .user = a};
	CGN_TRY(kvclient_new(a->loop, &client, &a->kv, err));
	kvclient_watch(a->kv, on_changes, a);
	return CGN_OK;
}

void kv_close(struct agent *a)
{
	kvclient_free(&a->kv);
}

void kv_watch_again(struct agent *a)
{
	if (a->kv == NULL)
		return;
	kvclient_watch(a->kv, NULL, NULL);
	kvclient_watch(a->kv, on_changes, a);
}
