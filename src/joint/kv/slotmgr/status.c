/* SPDX-License-Identifier: Apache-2.0 */
/* status: failures, the states that the engine refuses, and whether a restore pays. */
#include "base/log/log.h"
#include "joint/kv/slotmgr/slotmgr_priv.h"

#define PAUSE_MIN    CGN_SEC
#define PAUSE_MAX    (60 * CGN_SEC)
#define ANSWER_BYTES ((size_t)64 * 1024)

const char *restore_outcome_text(enum restore_outcome outcome)
{
	static const char *const names[RESTORE_OUTCOMES] = {[RESTORE_NOT_NEEDED] = "held",
		[RESTORE_FROM_RAM] = "ram",
		[RESTORE_FROM_SSD] = "ssd",
		[RESTORE_FROM_PEER] = "peer",
		[RESTORE_NO_STATE] = "none",
		[RESTORE_SKIPPED_SHORT] = "short",
		[RESTORE_SKIPPED_SLOWER] = "slower",
		[RESTORE_SKIPPED_REFUSED] = "refused",
		[RESTORE_FAILED_STATE_GONE] = "gone",
		[RESTORE_FAILED_ENGINE] = "engine",
		[RESTORE_FAILED_TIMEOUT] = "late",
		[RESTORE_FAILED_STORAGE] = "failed",
		[RESTORE_SKIPPED_PAUSED] = "paused",
		[RESTORE_SKIPPED_BY_CLIENT] = "alone",
		[RESTORE_SKIPPED_UNPLACEABLE] = "astray",
		[RESTORE_SKIPPED_OFF] = "off"};
	return names[outcome];
}

/* ---- the store and the engine ---- */

struct kvclient *slotmgr_kvclient(const struct slotmgr *m)
{
	struct kvclient *store = m->ops->store(m->user);
	return store != NULL && kvclient_ready(store) ? store : NULL;
}

struct block_key slotmgr_key(const uint8_t tail[SLOT_KEY_TAIL], uint64_t block, uint32_t segment)
{
	return (struct block_key){.digest = slot_key(tail, block), .segment = segment};
}

CGN_RC slotmgr_ask_engine(struct slotmgr *m, uint32_t slot, const char *action, const char *file,
	cgn_nsec timeout, webask_done *done, void *user, struct webask **out, struct cgn_err *err)
{
	char path[64], json[160];
	(void)snprintf(path, sizeof path, "/slots/%u?action=%s", slot, action);
	int n = snprintf(json, sizeof json, "{\"filename\":\"%s\"}", file);
	const struct webask_question post = {.path = path,
		.json = {json, (size_t)n},
		.max_bytes = ANSWER_BYTES,
		.timeout = timeout};
	return webask_start(m->loop, &m->endpoint, &post, done, user, out, err);
}

double slotmgr_engine_ms(struct json_val doc, const char *name, cgn_nsec took)
{
	struct json_val timings;
	double most = (double)took / 1e6;
	double told = json_get(doc, "timings", &timings) ? json_get_f64(timings, name, most) : most;
	return told > 0 && told < most ? told : most;
}

/* ---- failures ---- */

void slotmgr_trouble(struct slotmgr *m, const char *what, const char *why)
{
	char text[sizeof m->trouble];
	(void)snprintf(text, sizeof text, "%s: %.150s", what, why);
	if (strcmp(text, m->trouble) == 0)
		return;
	(void)cgn_str_copyz(m->trouble, sizeof m->trouble, cgn_str_of(text));
	cgn_log(WARN, "slot.trouble", F_STR("engine", m->name), F_STR("what", what), F_STR("why", why),
		F_STR("then", "requests are computed as without a store"));
}

void slotmgr_engine_did(struct slotmgr *m, bool well)
{
	struct slot_backoff *b = &m->backoff;
	cgn_nsec longer = b->pause > 0 ? 2 * b->pause : PAUSE_MIN;
	b->pause = well ? 0 : longer < PAUSE_MAX ? longer : PAUSE_MAX;
	b->resume_at = well ? 0 : cgn_clock_now() + b->pause;
}

bool slotmgr_is_paused(const struct slotmgr *m)
{
	return m->backoff.resume_at > 0 && cgn_clock_now() < m->backoff.resume_at;
}

void slotmgr_refuse(struct slotmgr *m, uint64_t id, uint64_t sum)
{
	struct slot_backoff *b = &m->backoff;
	b->refused[b->n_refused % SLOTMGR_MAX_REFUSED].id = id;
	b->refused[b->n_refused++ % SLOTMGR_MAX_REFUSED].sum = sum;
}

bool slotmgr_refuses(const struct slotmgr *m, const struct slot_entry *c)
{
	const struct slot_backoff *b = &m->backoff;
	for (size_t i = 0; i < b->n_refused && i < SLOTMGR_MAX_REFUSED; i++)
		if (b->refused[i].id == slot_entry_id(c) && b->refused[i].sum == c->sums[0])
			return true;
	return false;
}

/* ---- outcomes ---- */

enum restore_outcome slotmgr_worth(const struct slotmgr *m, uint32_t tokens, uint64_t bytes,
	enum slots_from from)
{
	if (tokens < m->min_tokens)
		return RESTORE_SKIPPED_SHORT;
	return slots_restore_pays(&m->pace, tokens, m->min_tokens, bytes, from) ? RESTORE_NO_STATE
										: RESTORE_SKIPPED_SLOWER;
}

void slotmgr_count_outcome(struct slotmgr *m, enum restore_outcome outcome)
{
	m->stats.outcomes[outcome]++;
	metric_add(METRIC_OF(m->telemetry, SLOT_PROMPTS, m->name, restore_outcome_text(outcome)), 1);
}

void slotmgr_get_metrics(struct slotmgr *m)
{
	m->stats.saved_bytes = METRIC_OF(m->telemetry, SLOT_SAVED_BYTES, m->name);
	m->stats.restored_tokens_cell = METRIC_OF(m->telemetry, SLOT_RESTORED_TOKENS, m->name);
	m->stats.restore_seconds = METRIC_OF(m->telemetry, SLOT_RESTORE_SECONDS, m->name);
	m->stats.spared_seconds = METRIC_OF(m->telemetry, SLOT_SPARED_SECONDS, m->name);
	m->stats.states = METRIC_OF(m->telemetry, SLOT_STATES, m->name);
}
