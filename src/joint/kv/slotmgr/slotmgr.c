/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/kv/slotmgr/states_priv.h"

static void on_slot_changed(void *user, uint64_t digest, bool held)
{
	struct slotmgr *m = user;
	if (held)
		(void)holdings_add(m->holdings, digest, BLOCK_GPU).code;
	else
		(void)holdings_drop(m->holdings, digest, BLOCK_GPU);
}

/* ---- working or not ---- */

/* The slots' content is not known any more, or the agent no longer assigns the slots. */
static void slotmgr_stop(struct slotmgr *m)
{
	struct slots *s = m->slots;
	if (s == NULL)
		return;
	slots_forget_all(s);
	m->slots = NULL;
	m->epoch++;
	cgn_timer_cancel(&m->idle_timer);
	slotmgr_pauses_forget(m);
	for (struct cgn_link *l; (l = cgn_list_first(&m->saves)) != NULL;)
		slot_save_stop(l);
	for (struct cgn_link *l; (l = cgn_list_first(&m->restores)) != NULL;)
		slot_restore_stop(l);
	slotmgr_release_all(m);
	slots_free(&s);
	m->ops->residency_changed(m->user, false);
	cgn_log(INFO, "slot.rest", F_STR("engine", m->name));
}

static void slot_arrays_make(struct slotmgr *m)
{
	uint32_t n = m->fingerprint.n_slots;
	free(m->idle_since);
	free(m->tenants);
	free(m->task);
	m->idle_since = CGN_NEW_ARRAY(cgn_nsec, n);
	m->tenants = CGN_NEW_ARRAY(struct slot_tenant, n);
	m->task = CGN_NEW_ARRAY(int64_t, n);
	for (uint32_t i = 0; i < n; i++)
		m->task[i] = -1;
}

/* Start once the engine is ready, the fingerprint is known and the store answers. */
static void slotmgr_start(struct slotmgr *m)
{
	struct cgn_err err = {0};
	uint32_t n = m->fingerprint.n_slots;
	if (m->slots != NULL || !m->fingerprint.known || slotmgr_kvclient(m) == NULL ||
		!m->ops->engine(m->user).ready)
		return;
	if (!cgn_ok(slot_folder_take(m, &err))) {
		slotmgr_trouble(m, "slots are not kept", err.msg);
		return;
	}
	slot_arrays_make(m);
	m->slots = slots_new(n, on_slot_changed, m);
	m->trouble[0] = '\0';
	m->backoff.n_refused = 0;
	slotmgr_engine_did(m, true); /* The engine may be another process than the one that failed */
	m->ops->residency_changed(m->user, true);
	cgn_log(INFO, "slot.work", F_STR("engine", m->name), F_U64("slots", n),
		F_STR("build", m->fingerprint.build),
		F_U64("states", slot_directory_states(m->entries.directory)));
}

static void on_fingerprint(struct slotmgr *m, const struct digest *fingerprint, uint32_t n_slots,
	const char *build)
{
	struct slot_fingerprint *f = &m->fingerprint;
	struct slot_keys keys;
	slot_keys_make(fingerprint, &keys);
	bool changed = !f->followed || memcmp(&keys, &f->keys, sizeof keys) != 0;
	f->keys = keys;
	f->n_slots = n_slots;
	f->known = true;
	(void)cgn_str_copyz(f->build, sizeof f->build, cgn_str_of(build));
	/* The store's keys so far were compared with the old keys, or with none. Until they are told again, requests find
	 * states by their links. */
	if (changed)
		slot_entries_clear(m);
	f->followed = slotmgr_kvclient(m) != NULL;
	slotmgr_start(m);
	if (changed && slotmgr_kvclient(m) != NULL)
		m->ops->rewatch_store(m->user);
}

void slotmgr_engine_ready(struct slotmgr *m, bool ready)
{
	if (m == NULL)
		return;
	CGN_LIVE(m, SLOTMGR_TAG);
	slotmgr_stop(m);
	fingerprint_cancel(m);
	if (!ready)
		return;
	m->fingerprint.known = false; /* The engine may be another process than before */
	fingerprint_start(m, on_fingerprint);
}

bool slotmgr_assigns(const struct slotmgr *m)
{
	return m != NULL && m->slots != NULL;
}

bool slotmgr_is_settled(const struct slotmgr *m)
{
	return m == NULL || m->slots != NULL || slotmgr_kvclient(m) == NULL || m->fingerprint.job == NULL;
}

void slotmgr_models_known(struct slotmgr *m)
{
	if (m != NULL)
		slotmgr_start(m);
}

/* Whether a slot's content is from before or after the change is not known. */
void slotmgr_engine_changed(struct slotmgr *m)
{
	CGN_LIVE(m, SLOTMGR_TAG);
	cgn_log(INFO, "slot.adapters", F_STR("engine", m->name),
		F_STR("why", "/lora-adapters says something else than before"),
		F_STR("then", "states of before are not used, until it says so again"));
	slotmgr_engine_ready(m, true);
	slot_entries_clear(m);
	m->fingerprint.followed = false;
}

/* ---- the store ---- */

void slotmgr_store_changed(struct slotmgr *m, bool reset, const struct block_change *changes, size_t n)
{
	if (m == NULL)
		return;
	CGN_LIVE(m, SLOTMGR_TAG);
	if (reset)
		slot_entries_clear(m);
	if (m->fingerprint.known)
		slot_entries_changed(m, changes, n);
	else if (n > 0)
		m->fingerprint.followed = false;
}

void slotmgr_store_ready(struct slotmgr *m, bool ready)
{
	if (m == NULL)
		return;
	CGN_LIVE(m, SLOTMGR_TAG);
	if (ready) {
		slotmgr_start(m);
		return;
	}
	slotmgr_stop(m);
	slot_entries_clear(m);
}

/* ---- the engine's report of its slots ---- */

/* True when a request ran in the slot that the slot manager did not place: the task number differs from the
 * one seen since the last placed request; or, when the last placed request's task was not seen yet, the number
 * of tokens differs from what that request left. */
static bool slot_is_stray(const struct slotmgr *m, uint32_t i, int64_t task, uint64_t tokens)
{
	struct slot_view v = slots_at(m->slots, i);
	if (m->task[i] >= 0)
		return m->task[i] != task;
	return tokens > 0 && v.tokens > 0 &&
		(tokens > v.tokens ? tokens - v.tokens : v.tokens - tokens) > SLOTMGR_TOKEN_SLACK;
}

static void slot_told(struct slotmgr *m, struct json_val slot)
{
	uint64_t id = json_get_u64(slot, "id", UINT64_MAX), tokens = json_get_u64(slot, "n_prompt_tokens", 0);
	if (id >= slots_count(m->slots))
		return;
	uint32_t i = (uint32_t)id;
	int64_t task = (int64_t)json_get_u64(slot, "id_task", 0);
	if (slots_at(m->slots, i).use != SLOT_IDLE || json_get_bool(slot, "is_processing", false))
		return;
	if (slot_is_stray(m, i, task, tokens)) {
		m->stats.strays++;
		slots_forget(m->slots, i);
	}
	m->task[i] = task;
	if (tokens > 0 && tokens <= UINT32_MAX)
		slots_counted(m->slots, i, (uint32_t)tokens);
}

void slotmgr_slots_told(struct slotmgr *m, struct cgn_str json)
{
	struct json_val doc, slot;
	if (m == NULL || m->slots == NULL || !cgn_ok(json_parse(json, &doc, NULL, NULL)) ||
		doc.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(doc); json_next_elem(&it, &slot);)
		slot_told(m, slot);
}
