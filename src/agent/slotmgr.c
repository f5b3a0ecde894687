/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/slotmgr.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/disk/disk.h"

#define PAUSE_LEAST CGN_SEC
#define PAUSE_MOST  (60 * CGN_SEC)

/* ---- what routers are told ---- */

static void held_in_slot(void *user, uint64_t digest, bool held)
{
	struct keep *k = user;
	struct holdings *h = k->e->agent->holdings;
	if (held)
		(void)holdings_add(h, digest, BLOCK_GPU).code;
	else
		(void)holdings_drop(h, digest, BLOCK_GPU);
}

static void held_in_store(void *user, uint64_t digest, enum block_tier tier, bool held)
{
	struct keep *k = user;
	struct holdings *h = k->e->agent->holdings;
	if (held)
		(void)holdings_add(h, digest, tier).code;
	else
		(void)holdings_drop(h, digest, tier);
}

/* ---- at work or not ---- */

struct kvclient *slotmgr_kvclient(const struct keep *k)
{
	struct agent *a = k->e->agent;
	return a->kv != NULL && kvclient_ready(a->kv) ? a->kv : NULL;
}

struct block_key slotmgr_key(const uint8_t tail[SLOT_KEY_TAIL], uint64_t block, uint32_t segment)
{
	return (struct block_key){.digest = slot_key(tail, block), .segment = segment};
}

void slotmgr_trouble(struct keep *k, const char *what, const char *why)
{
	char text[sizeof k->trouble];
	(void)snprintf(text, sizeof text, "%s: %.150s", what, why);
	if (strcmp(text, k->trouble) == 0)
		return;
	(void)cgn_str_copyz(k->trouble, sizeof k->trouble, cgn_str_of(text));
	cgn_log(WARN, "slot.trouble", F_STR("engine", k->e->name), F_STR("what", what), F_STR("why", why),
		F_STR("then", "requests are computed as without a store"));
}

/* ---- an engine that fails ---- */

void slotmgr_engine_did(struct keep *k, bool well)
{
	cgn_nsec longer = k->pause > 0 ? 2 * k->pause : PAUSE_LEAST;
	k->pause = well ? 0 : longer < PAUSE_MOST ? longer : PAUSE_MOST;
	k->resume_at = well ? 0 : cgn_clock_now() + k->pause;
}

bool slotmgr_is_paused(const struct keep *k)
{
	return k->resume_at > 0 && cgn_clock_now() < k->resume_at;
}

void slotmgr_refuse(struct keep *k, uint64_t id, uint64_t sum)
{
	k->refused[k->n_refused % SLOTMGR_MAX_REFUSED].id = id;
	k->refused[k->n_refused++ % SLOTMGR_MAX_REFUSED].sum = sum;
}

bool slotmgr_refuses(const struct keep *k, const struct slot_entry *c)
{
	for (size_t i = 0; i < k->n_refused && i < SLOTMGR_MAX_REFUSED; i++)
		if (k->refused[i].id == slot_entry_id(c) && k->refused[i].sum == c->sums[0])
			return true;
	return false;
}

static void source_set(struct keep *k, enum residency_by source)
{
	engine_residency_source(k->e, source);
	(void)cgn_str_copyz(k->e->residency_text, sizeof k->e->residency_text,
		cgn_str_of(source == RESIDENCY_BY_SLOTS ? "slots" : "sent"));
	agent_changed(k->e->agent);
}

/* The slots' content is not known any more, or they are not ours to assign. */
static void stop(struct keep *k)
{
	struct slots *s = k->slots;
	if (s == NULL)
		return;
	slots_forget_all(s);
	k->slots = NULL;
	k->epoch++;
	cgn_timer_cancel(&k->idle_timer);
	for (struct cgn_link *l; (l = cgn_list_first(&k->saves_now)) != NULL;)
		save_stop(l);
	for (struct cgn_link *l; (l = cgn_list_first(&k->restores_now)) != NULL;)
		restore_stop(l);
	slotmgr_release_all(k);
	slots_free(&s);
	source_set(k, RESIDENCY_BY_SENT);
	cgn_log(INFO, "slot.rest", F_STR("engine", k->e->name));
}

static bool arrays_make(struct keep *k)
{
	free(k->idle_since);
	free(k->task);
	k->idle_since = calloc(k->n_slots, sizeof *k->idle_since);
	k->task = malloc(k->n_slots * sizeof *k->task);
	for (uint32_t i = 0; k->task != NULL && i < k->n_slots; i++)
		k->task[i] = -1;
	return k->idle_since != NULL && k->task != NULL;
}

/* Once all that it needs is there. */
static void start(struct keep *k)
{
	struct cgn_err err = {0};
	if (k->slots != NULL || !k->printed || slotmgr_kvclient(k) == NULL || !engine_is_ready(k->e))
		return;
	if (!cgn_ok(folder_take(k, &err))) {
		slotmgr_trouble(k, "slots are not kept", err.msg);
		return;
	}
	if (!arrays_make(k) || !cgn_ok(slots_new(k->n_slots, held_in_slot, k, &k->slots, &err))) {
		slotmgr_trouble(k, "slots are not kept", "no memory");
		return;
	}
	k->trouble[0] = '\0';
	k->n_refused = 0;
	slotmgr_engine_did(k, true); /* it is another one, perhaps */
	source_set(k, RESIDENCY_BY_SLOTS);
	cgn_log(INFO, "slot.work", F_STR("engine", k->e->name), F_U64("slots", k->n_slots),
		F_STR("build", k->build), F_U64("states", slot_directory_states(k->slot_directory)));
}

void slotmgr_fingerprint_known(struct keep *k, const struct digest *fingerprint, uint32_t n_slots,
	const char *build)
{
	struct slot_keys keys;
	slot_keys_make(fingerprint, &keys);
	bool other = !k->printed || memcmp(&keys, &k->keys, sizeof keys) != 0;
	k->keys = keys;
	k->n_slots = n_slots;
	k->printed = true;
	(void)cgn_str_copyz(k->build, sizeof k->build, cgn_str_of(build));
	start(k);
	/* Whatever the store told so far was told past us. */
	if (other && slotmgr_kvclient(k) != NULL)
		kv_watch_again(k->e->agent);
}

void slotmgr_engine_ready(struct engine *e, bool ready)
{
	struct keep *k = e->keep;
	if (k == NULL)
		return;
	CGN_LIVE(k, SLOTMGR_TAG);
	stop(k);
	fingerprint_cancel(k);
	if (!ready)
		return;
	k->printed = false; /* it may be another engine than the one before */
	fingerprint_start(k);
}

void slotmgr_models_known(struct engine *e)
{
	if (e->keep != NULL)
		start(e->keep);
}

/* ---- what the store has ---- */

struct entry_fetch {
	struct keep *keep;
	struct kvclient_call *call;
	struct cgn_link link;
};

static void gets_start(struct keep *k);

static void get_end(struct entry_fetch *g)
{
	kvclient_call_cancel(&g->call);
	cgn_list_drop(&g->link);
	g->keep->n_gets--;
	free(g);
}

static void on_card(void *user, const struct kvclient_answer *a)
{
	struct entry_fetch *g = user;
	struct keep *k = g->keep;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.limit = SLOT_ENTRY_MAX_BYTES};
	struct kvclient_lease *lease = a->lease;
	struct slot_entry c;
	size_t n = 0;
	CGN_LIVE(k, SLOTMGR_TAG);
	g->call = NULL;
	const struct iovec *iov = lease != NULL ? kvclient_lease_iov(lease, &n) : NULL;
	for (size_t i = 0; i < n; i++)
		cgn_buf_add(&b, iov[i].iov_base, iov[i].iov_len);
	kvclient_lease_release(&lease);
	if (a->err->code == CGN_FINE && !b.bad &&
		cgn_ok(slot_entry_read(cgn_buf_view(&b), k->words, &c, NULL)))
		(void)slot_directory_add(k->slot_directory, &c, NULL).code;
	metric_set(k->m_states, (double)slot_directory_states(k->slot_directory));
	get_end(g);
	gets_start(k);
}

static bool get_start(struct keep *k, uint64_t id)
{
	struct entry_fetch *g = calloc(1, sizeof *g);
	const struct block_key key = slotmgr_key(k->keys.slot_entry, id, 0);
	if (g == NULL)
		return false;
	g->keep = k;
	if (!cgn_ok(kvclient_get(slotmgr_kvclient(k), &key, KVCLIENT_HERE_ONLY, on_card, g, &g->call,
		    NULL))) {
		free(g);
		return false;
	}
	cgn_list_push(&k->gets, &g->link);
	k->n_gets++;
	return true;
}

/* A few at a time: after a start there may be thousands. */
static void gets_start(struct keep *k)
{
	while (slotmgr_kvclient(k) != NULL && k->n_gets < SLOTMGR_MAX_GETS && k->n_wanted > 0)
		if (!get_start(k, k->wanted[--k->n_wanted]))
			return;
}

static void want(struct keep *k, uint64_t id)
{
	if (k->n_wanted == k->cap_wanted) {
		size_t cap = k->cap_wanted > 0 ? 2 * k->cap_wanted : 64;
		uint64_t *more =
			cap <= SLOT_DIRECTORY_MAX_STATES ? realloc(k->wanted, cap * sizeof *more) : NULL;
		if (more == NULL)
			return;
		k->wanted = more;
		k->cap_wanted = cap;
	}
	k->wanted[k->n_wanted++] = id;
}

static void directory_empty(struct keep *k)
{
	k->n_wanted = 0;
	for (struct cgn_link *l; (l = cgn_list_first(&k->gets)) != NULL;)
		get_end(CGN_CONTAINER(l, struct entry_fetch, link));
	slot_directory_clear(k->slot_directory);
	metric_set(k->m_states, 0);
}

/* What its slots hold is of before or after the change; who knows. */
void slotmgr_engine_changed(struct keep *k)
{
	CGN_LIVE(k, SLOTMGR_TAG);
	cgn_log(INFO, "slot.adapters", F_STR("engine", k->e->name),
		F_STR("why", "/lora-adapters says something else than before"),
		F_STR("then", "states of before are not used, until it says so again"));
	slotmgr_engine_ready(k->e, true);
	directory_empty(k);
}

void slotmgr_store_changed(struct engine *e, bool reset, const struct block_change *changes, size_t n)
{
	struct keep *k = e->keep;
	uint64_t id = 0;
	if (k == NULL)
		return;
	CGN_LIVE(k, SLOTMGR_TAG);
	if (reset)
		directory_empty(k);
	if (!k->printed)
		return;
	for (size_t i = 0; i < n; i++)
		if (slot_key_is(&changes[i].key.digest, k->keys.slot_entry, &id) &&
			slot_directory_piece_told(k->slot_directory, id, changes[i].key.segment,
				changes[i].tiers))
			want(k, id);
	metric_set(k->m_states, (double)slot_directory_states(k->slot_directory));
	gets_start(k);
}

void slotmgr_store_ready(struct engine *e, bool ready)
{
	struct keep *k = e->keep;
	if (k == NULL)
		return;
	CGN_LIVE(k, SLOTMGR_TAG);
	if (ready) {
		start(k);
		return;
	}
	stop(k);
	directory_empty(k);
}

/* ---- what the engine says of its slots ---- */

/* Another task than the one that was seen there since our last; or, if ours is the last that was seen,
 * another number of tokens than it left. */
static bool is_strange(const struct keep *k, uint32_t i, int64_t task, uint64_t tokens)
{
	struct slot_view v = slots_at(k->slots, i);
	if (k->task[i] >= 0)
		return k->task[i] != task;
	return tokens > 0 && v.tokens > 0 &&
		(tokens > v.tokens ? tokens - v.tokens : v.tokens - tokens) > SLOTMGR_TOKEN_SLACK;
}

static void slot_told(struct keep *k, struct json_val slot)
{
	uint64_t id = json_get_u64(slot, "id", UINT64_MAX), tokens = json_get_u64(slot, "n_prompt_tokens", 0);
	if (id >= slots_count(k->slots))
		return;
	uint32_t i = (uint32_t)id;
	int64_t task = (int64_t)json_get_u64(slot, "id_task", 0);
	if (slots_at(k->slots, i).use != SLOT_IDLE || json_get_bool(slot, "is_processing", false))
		return;
	if (is_strange(k, i, task, tokens)) {
		k->strays++;
		slots_forget(k->slots, i);
	}
	k->task[i] = task;
	if (tokens > 0 && tokens <= UINT32_MAX)
		slots_counted(k->slots, i, (uint32_t)tokens);
}

void slotmgr_slots_told(struct engine *e, struct cgn_str json)
{
	struct keep *k = e->keep;
	struct json_val doc, slot;
	if (k == NULL || k->slots == NULL || !cgn_ok(json_parse(json, &doc, NULL, NULL)) ||
		doc.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(doc); json_next_elem(&it, &slot);)
		slot_told(k, slot);
}

/* ---- life ---- */

static void on_idle(struct cgn_timer *t)
{
	struct keep *k = CGN_CONTAINER(t, struct keep, idle_timer);
	CGN_LIVE(k, SLOTMGR_TAG);
	slotmgr_idle_step(k);
}

static void get_metrics(struct keep *k)
{
	k->m_saved_bytes = METRIC_OF(k->e->agent->telemetry, SLOT_SAVED_BYTES, k->e->name);
	k->m_restored_tokens = METRIC_OF(k->e->agent->telemetry, SLOT_RESTORED_TOKENS, k->e->name);
	k->m_restore_seconds = METRIC_OF(k->e->agent->telemetry, SLOT_RESTORE_SECONDS, k->e->name);
	k->m_spared = METRIC_OF(k->e->agent->telemetry, SLOT_SPARED_SECONDS, k->e->name);
	k->m_states = METRIC_OF(k->e->agent->telemetry, SLOT_STATES, k->e->name);
}

/* Options of the command line that change what a state means outlive the configuration. */
static bool copy_options(struct engine *e, const struct config_engine *ce)
{
	e->n_extra_args = ce->managed ? ce->extra_args.n : 0;
	e->extra_args = cgn_arena_get(&e->arena, (e->n_extra_args + 1) * sizeof *e->extra_args);
	if (e->extra_args == NULL)
		return false;
	for (size_t i = 0; i < e->n_extra_args; i++)
		if ((e->extra_args[i] = cgn_arena_strz(&e->arena, cgn_str_of(ce->extra_args.v[i]))) == NULL)
			return false;
	if (ce->model_path != NULL &&
		(e->model_path = cgn_arena_strz(&e->arena, cgn_str_of(ce->model_path))) == NULL)
		return false;
	return true;
}

CGN_RC slotmgr_open(struct engine *e, const struct config_engine *ce, struct cgn_err *err)
{
	if (ce->kind != ENGINE_LLAMA_CPP || ce->slot_dir == NULL)
		return CGN_OK;
	struct keep *k = calloc(1, sizeof *k);
	if (k == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the slots of engine %s", e->name);
	*k = (struct keep){.tag = SLOTMGR_TAG,
		.e = e,
		.least_tokens = ce->kv_save_min_tokens,
		.idle = ce->kv_save_idle,
		.timeout = ce->kv_restore_timeout,
		.lock = -1};
	e->keep = k;
	cgn_list_init(&k->waiting);
	cgn_list_init(&k->preparing);
	cgn_list_init(&k->saves_now);
	cgn_list_init(&k->restores_now);
	cgn_list_init(&k->gets);
	cgn_list_init(&k->files_now);
	cgn_timer_init(&k->idle_timer, e->agent->loop, on_idle);
	get_metrics(k);
	if (!cgn_str_copyz(k->dir, sizeof k->dir, cgn_str_of(ce->slot_dir)))
		return CGN_FAIL(err, INVALID, "engine.slot_dir %.200s...: longer than %zu bytes",
			ce->slot_dir, sizeof k->dir - 1);
	(void)cgn_str_copyz(k->tag_text, sizeof k->tag_text,
		cgn_str_of(ce->kv_tag != NULL ? ce->kv_tag : ""));
	k->words = malloc(SLOT_ENTRY_MAX_BYTES);
	if (k->words == NULL || !copy_options(e, ce))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the slots of engine %s", e->name);
	if (ce->managed)
		CGN_TRY(disk_mkdirs(k->dir, 0750, err));
	/* Who starts the engine may make it later. */
	if (ce->managed || access(k->dir, F_OK) == 0)
		CGN_TRY(folder_take(k, err));
	return slot_directory_new(held_in_store, k, &k->slot_directory, err);
}

void slotmgr_close(struct engine *e)
{
	struct keep *k = e->keep;
	e->keep = NULL;
	if (k == NULL)
		return;
	CGN_LIVE(k, SLOTMGR_TAG);
	e->keep = k; /* for those that stop */
	stop(k);
	fingerprint_cancel(k);
	if (k->slot_directory != NULL)
		directory_empty(k);
	cgn_timer_cancel(&k->idle_timer);
	folder_leave(k);
	slot_directory_free(&k->slot_directory);
	free(k->idle_since);
	free(k->task);
	free(k->words);
	free(k->wanted);
	cgn_buf_fini(&k->adapters);
	e->keep = NULL;
	k->tag = 0;
	free(k);
}

void slotmgr_report(const struct engine *e, struct json_out *o)
{
	static const char *const uses[] =
		{[SLOT_IDLE] = "idle", [SLOT_BUSY] = "busy", [SLOT_MOVING] = "moving"};
	const struct keep *k = e->keep;
	if (k == NULL) {
		json_put_null(o);
		return;
	}
	json_open(o, '{');
	json_key(o, "at_work");
	json_put_bool(o, k->slots != NULL);
	json_key_z(o, "trouble", k->trouble);
	json_key_z(o, "build", k->build);
	json_key_u64(o, "states", slot_directory_states(k->slot_directory));
	json_key_u64(o, "state_blocks", slot_directory_blocks(k->slot_directory));
	json_key_u64(o, "saves", k->saves);
	json_key_u64(o, "save_failures", k->save_failures);
	json_key_u64(o, "restores", k->restores);
	json_key_u64(o, "restore_failures", k->restore_failures);
	json_key_u64(o, "restored_tokens", k->restored_tokens);
	json_key_f64(o, "spared_ms", k->spared_ms);
	json_key(o, "prompts");
	json_open(o, '{');
	for (enum restore_outcome how = 0; how < RESTORE_OUTCOMES; how++)
		json_key_u64(o, restore_outcome_text(how), k->hows[how]);
	json_close(o, '}');
	json_key(o, "paused");
	json_put_bool(o, slotmgr_is_paused(k));
	json_key_u64(o, "strays", k->strays);
	json_key_f64(o, "prefill_ms_per_token", k->pace.prefill_ms);
	json_key_f64(o, "bytes_per_token", k->pace.token_bytes);
	json_key_f64(o, "save_ms_per_mib", k->pace.save_ms);
	json_key_f64(o, "load_ms_per_mib", k->pace.load_ms);
	json_key(o, "slots");
	json_open(o, '[');
	for (uint32_t i = 0; k->slots != NULL && i < slots_count(k->slots); i++) {
		struct slot_view v = slots_at(k->slots, i);
		json_open(o, '{');
		json_key_z(o, "use", uses[v.use]);
		json_key_u64(o, "blocks", v.n);
		json_key_u64(o, "tokens", v.tokens);
		json_key_u64(o, "stored", v.saved);
		json_close(o, '}');
	}
	json_close(o, ']');
	json_close(o, '}');
}
