/* SPDX-License-Identifier: Apache-2.0 */
/* The order of batches: which comes next, which waits, when to order a replay, and when to forget
 * everything. */
#include <stdlib.h>
#include <string.h>

#include "base/codec/codec.h"
#include "kvsource_priv.h"

#define KVSOURCE_TAG     0x6b765352U
#define MAX_FRUITLESS    3
#define MAX_RESTARTS     8 /* Within KVSOURCE_COOLDOWN. */
#define MAX_BLOCK_TOKENS 65536

#define TO(id) (1U << KVSOURCE_##id)
static const struct {
	const char *text;
	unsigned exits;
} states[] = {
#define STATE(id, text, exits, meaning) {text, exits},
#include "policy/kv/kvsource/states.def"
#undef STATE
};
#undef TO

const char *kvsource_state_name(enum kvsource_state s)
{
	return states[s].text;
}

/* ---- small steps ---- */

static void state_set(struct kvsource *s, enum kvsource_state state, const char *why)
{
	CGN_MUST((states[s->state].exits & 1U << state) != 0);
	s->state = state;
	(void)cgn_str_copyz(s->why, sizeof s->why, cgn_str_of(why));
}

/* Drop all blocks and start counting batches again. */
static void source_forget(struct kvsource *s)
{
	ledger_clear(&s->ledger);
	s->started = s->complete = false;
	s->next = s->base = s->next_at_ask = 0;
	s->quiet_at = 0;
}

static uint64_t fingerprint_of(struct cgn_str payload)
{
	struct digest d = digest_of(payload);
	return digest_short(&d);
}

/* Return true when this payload was applied under this number, as far as fingerprints are kept. */
static bool batch_was_applied(const struct kvsource *s, uint64_t seq, struct cgn_str payload)
{
	return s->started && seq < s->next && seq >= s->base && s->next - seq <= FINGERPRINTS &&
		s->fingerprints[seq % FINGERPRINTS] == fingerprint_of(payload);
}

/* Return true when the batch was applied too long ago for its fingerprint to be kept: a replay may be that
 * far ahead of the live events. If the batch is from a restarted publisher after all, the next audit detects
 * it. */
static bool batch_is_overtaken(const struct kvsource *s, uint64_t seq)
{
	return s->cfg.can_replay && s->started && seq < s->next && s->next - seq > FINGERPRINTS;
}

static void replay_begin(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->verify = s->started && s->next > s->base;
	s->next_at_ask = s->next;
	s->replaying = true;
	s->replay_due = now + KVSOURCE_REPLAY_TIMEOUT;
	s->missed = false;
	s->stats.replays++;
	out->replay = true;
	out->cancel_replay = false;
	out->replay_from = s->verify ? s->next - 1 : s->started && s->next > s->floor ? s->next : s->floor;
	s->quiet_at = 0;
	s->audit = s->resync = false;
}

static void replay_end(struct kvsource *s, struct kvsource_orders *out)
{
	out->cancel_replay = s->replaying && !out->replay;
	s->replaying = s->verify = s->audit = s->resync = false;
}

static void state_settle(struct kvsource *s)
{
	if (!s->connected || s->replaying || s->state == KVSOURCE_DEMOTED)
		return;
	if (s->complete)
		state_set(s, KVSOURCE_GOOD, "");
	else if (s->state == KVSOURCE_PARTIAL)
		return;
	else if (!s->started)
		state_set(s, KVSOURCE_SYNCING, "it waits for the first event");
	else if (s->base == 0 && s->floor == 0)
		state_set(s, KVSOURCE_PARTIAL, "it told of blocks whose parents it had not told of");
	else
		state_set(s, KVSOURCE_PARTIAL, "events before the first that was seen are not known");
}

static void source_demote(struct kvsource *s, const char *why, bool hopeless, cgn_nsec now,
	struct kvsource_orders *out)
{
	replay_end(s, out);
	source_forget(s);
	held_clear(&s->held);
	s->hopeless = hopeless;
	s->cooldown_until = hopeless ? 0 : now + KVSOURCE_COOLDOWN;
	state_set(s, KVSOURCE_DEMOTED, why);
}

/* ---- applying ---- */

/* Apply the next batch, or the first one. Return false when this demoted the source. */
static bool batch_apply(struct kvsource *s, uint64_t seq, struct cgn_str payload, cgn_nsec now,
	struct kvsource_orders *out)
{
	struct cgn_err why = {0};
	if (!s->started) {
		s->started = true;
		s->base = seq;
		s->complete = seq == 0 && s->floor == 0;
	}
	s->fingerprints[seq % FINGERPRINTS] = fingerprint_of(payload);
	s->next = seq + 1;
	s->quiet_at = s->cfg.can_replay && now >= s->cooldown_until ? now + KVSOURCE_QUIET : 0;
	s->stats.last_at = now;
	cgn_rc rc = kvsource_apply(s, payload, &why);
	if (cgn_ok(rc))
		return true;
	if (rc.code == CGN_INVALID) {
		char text[200];
		(void)snprintf(text, sizeof text, "unparsable event, batch %llu: %.150s",
			(unsigned long long)seq, why.msg);
		s->stats.errors++;
		s->floor = seq + 1;
		out->unparsable = true;
		struct cgn_buf head = cgn_buf_over(out->head, sizeof out->head);
		hex_put(&head, (struct cgn_str){payload.p, payload.n < 32 ? payload.n : 32});
		(void)cgn_buf_z(&head);
		source_demote(s, text, false, now, out);
	} else {
		source_demote(s, why.msg, true, now, out);
	}
	return false;
}

/* Apply held batches as long as the next one is there. */
static void held_apply(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	struct held_batch b;
	held_drop_below(&s->held, s->next);
	while (held_take(&s->held, s->next, &b)) {
		bool ok = batch_apply(s, b.seq, (struct cgn_str){b.payload, b.n}, now, out);
		free(b.payload);
		if (!ok)
			return;
	}
}

/* Forget everything and continue from the first held batch. */
static void sync_restart_here(struct kvsource *s, const char *why, cgn_nsec now, struct kvsource_orders *out)
{
	struct held_batch b;
	replay_end(s, out);
	source_forget(s);
	state_set(s, KVSOURCE_PARTIAL, why);
	if (held_take(&s->held, held_first(&s->held), &b)) {
		bool ok = batch_apply(s, b.seq, (struct cgn_str){b.payload, b.n}, now, out);
		free(b.payload);
		if (ok)
			held_apply(s, now, out);
	}
}

static void batch_hold(struct kvsource *s, uint64_t seq, struct cgn_str payload)
{
	if (!held_put(&s->held, seq, payload))
		s->missed = true;
}

/* A batch is missing before the held ones. */
static void gap_fill(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->stats.gaps++;
	if (s->cfg.can_replay && now >= s->cooldown_until)
		replay_begin(s, now, out);
	else
		sync_restart_here(s,
			s->cfg.can_replay ? "events were lost soon after a replay failed"
					  : "events were lost, and no replay endpoint is configured",
			now, out);
}

/* The publisher restarted, with an empty cache. Return false when it restarts too often and the source was
 * demoted. */
static bool publisher_restarted(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->stats.restarts++;
	s->floor = 0;
	if (s->restarts_n == 0 || cgn_since(now, s->restarts_since) >= KVSOURCE_COOLDOWN) {
		s->restarts_since = now;
		s->restarts_n = 0;
	}
	if (s->restarts_n == MAX_RESTARTS) {
		source_demote(s, "it was restarted 9 times within 30 s: do two publish to this endpoint?",
			false, now, out);
		return false;
	}
	s->restarts_n++;
	source_forget(s);
	state_set(s, KVSOURCE_SYNCING, "it learns what came before");
	return true;
}

/* Learn everything from the beginning, or as far back as the publisher can replay. */
static void sync_start(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->hopeless = false;
	s->fruitless = 0;
	s->cooldown_until = 0;
	state_set(s, KVSOURCE_SYNCING,
		s->cfg.can_replay ? "it learns what came before" : "it waits for the first event");
	if (s->cfg.can_replay)
		replay_begin(s, now, out);
}

/* ---- inputs ---- */

static void on_connected(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->connected = true;
	s->stale_at = 0;
	/* Without a replay nothing can be verified: the publisher may have restarted. */
	if (s->state == KVSOURCE_DEMOTED || !s->cfg.can_replay) {
		source_forget(s);
		s->floor = 0;
	} else if (s->cooldown_until != 0) { /* A sync from the beginning was due anyway. */
		source_forget(s);
	}
	held_clear(&s->held);
	sync_start(s, now, out);
}

static void on_disconnected(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->connected = false;
	s->stale_at = now + KVSOURCE_STALE;
	replay_end(s, out);
	if (s->state != KVSOURCE_DEMOTED)
		state_set(s, KVSOURCE_WAITING, "not connected");
}

static void on_live(struct kvsource *s, uint64_t seq, struct cgn_str payload, cgn_nsec now,
	struct kvsource_orders *out)
{
	if (s->state == KVSOURCE_DEMOTED && !(s->hopeless && seq == 0))
		return;
	if (batch_was_applied(s, seq, payload) || batch_is_overtaken(s, seq)) {
		s->stats.duplicates++;
		return;
	}
	if (s->hopeless || (s->started && seq < s->next)) {
		if (!publisher_restarted(s, now, out))
			return;
		held_clear(&s->held);
		batch_hold(s, seq, payload);
		sync_start(s, now, out);
		if (s->cfg.can_replay)
			return;
		sync_restart_here(s, "events before the first that was seen are not known", now, out);
	} else if (s->replaying) {
		batch_hold(s, seq, payload);
	} else if (!s->started || seq == s->next) {
		if (batch_apply(s, seq, payload, now, out))
			held_apply(s, now, out);
	} else {
		batch_hold(s, seq, payload);
		gap_fill(s, now, out);
	}
}

/* Compare the first answer of a replay with the batch applied last, to see whether the publisher is the same.
 * Return false when the answer is used up. */
static bool replay_verify(struct kvsource *s, uint64_t seq, struct cgn_str payload, cgn_nsec now,
	struct kvsource_orders *out)
{
	if (seq + 1 < s->next)
		return false;
	s->verify = false;
	if (seq + 1 == s->next) {
		if (batch_was_applied(s, seq, payload))
			s->replay_due = now + KVSOURCE_REPLAY_TIMEOUT;
		else if (publisher_restarted(s, now, out))
			replay_begin(s, now, out);
		return false;
	}
	s->stats.gaps++; /* The replay does not reach back far enough; the missing batches are lost. */
	source_forget(s);
	state_set(s, KVSOURCE_SYNCING, "it learns what came before");
	return true;
}

/* Forget the old blocks of a resync only when the replay answers. */
static void replay_answered(struct kvsource *s)
{
	if (s->resync)
		source_forget(s);
	s->resync = false;
}

static void on_replayed(struct kvsource *s, uint64_t seq, struct cgn_str payload, cgn_nsec now,
	struct kvsource_orders *out)
{
	if (!s->replaying || s->state == KVSOURCE_DEMOTED)
		return;
	replay_answered(s);
	if (s->verify && !replay_verify(s, seq, payload, now, out))
		return;
	if (s->started && seq < s->next) {
		s->stats.duplicates++;
		return;
	}
	s->replay_due = now + KVSOURCE_REPLAY_TIMEOUT;
	if (s->started && seq > s->next) { /* A batch is missing from the publisher's own buffer. */
		s->stats.gaps++;
		source_forget(s);
	}
	(void)batch_apply(s, seq, payload, now, out);
}

/* A replay is complete, and a batch is still missing before the held ones. */
static void replay_fell_short(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->fruitless = s->next > s->next_at_ask ? 0 : s->fruitless + 1;
	if (s->fruitless < MAX_FRUITLESS) {
		replay_begin(s, now, out);
		return;
	}
	s->fruitless = 0;
	s->stats.replay_failures++;
	s->cooldown_until = now + KVSOURCE_COOLDOWN;
	sync_restart_here(s, "a replay did not bring the events that were lost", now, out);
}

static void on_replay_end(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	if (!s->replaying)
		return;
	replay_answered(s);
	bool gone = s->verify; /* The publisher lacks even the batches that were applied. */
	bool audited = s->audit && s->next == s->next_at_ask;
	s->replaying = s->verify = s->audit = false;
	if (gone) {
		if (publisher_restarted(s, now, out))
			replay_begin(s, now, out);
		return;
	}
	if (!s->started) { /* Nothing was published yet. */
		s->started = true;
		s->next = s->base = s->floor;
		s->complete = s->floor == 0;
	}
	held_apply(s, now, out);
	if (s->state == KVSOURCE_DEMOTED)
		return;
	if (s->held.n > 0 || s->missed) {
		replay_fell_short(s, now, out);
		return;
	}
	s->fruitless = 0;
	s->quiet_at = s->cfg.can_replay ? now + (audited ? KVSOURCE_IDLE : KVSOURCE_QUIET) : 0;
}

static void on_replay_failed(struct kvsource *s, const char *reason, cgn_nsec now,
	struct kvsource_orders *out)
{
	char why[200];
	if (!s->replaying)
		return;
	s->stats.replay_failures++;
	if (s->audit || s->resync) { /* Nothing new is known to be missing, except before the held batches. */
		s->cooldown_until = s->resync ? now + KVSOURCE_COOLDOWN : s->cooldown_until;
		replay_end(s, out);
		held_apply(s, now, out);
		s->quiet_at = now + KVSOURCE_IDLE;
		if (s->state != KVSOURCE_DEMOTED && (s->held.n > 0 || s->missed))
			gap_fill(s, now, out);
		return;
	}
	(void)snprintf(why, sizeof why, "the replay failed: %s", reason);
	s->cooldown_until = now + KVSOURCE_COOLDOWN;
	sync_restart_here(s, why, now, out);
}

/* Order a replay after a silence: the last batch may have been lost without a later one to reveal the gap. */
static void replay_audit(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->quiet_at = 0;
	if (!s->connected || !s->started || s->replaying || now < s->cooldown_until)
		return;
	replay_begin(s, now, out);
	s->audit = true;
}

/* Sync from the beginning, if that is possible now. */
static void sync_retry(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	s->cooldown_until = 0;
	if (s->complete)
		return;
	if (!s->started || !s->cfg.can_replay) {
		source_forget(s);
		sync_start(s, now, out);
	} else if (s->replaying && !s->audit) { /* Fill the gap first. */
		s->cooldown_until = now + KVSOURCE_COOLDOWN;
	} else {
		replay_begin(s, now, out);
		s->verify = false;
		s->resync = true;
		out->replay_from = s->floor;
	}
}

static void on_tick(struct kvsource *s, cgn_nsec now, struct kvsource_orders *out)
{
	if (s->replaying && now >= s->replay_due)
		on_replay_failed(s, "no answer for 5 s", now, out);
	if (s->stale_at != 0 && now >= s->stale_at) {
		s->stale_at = 0;
		source_forget(s);
		held_clear(&s->held);
	}
	if (s->cooldown_until != 0 && now >= s->cooldown_until && s->connected)
		sync_retry(s, now, out);
	if (s->quiet_at != 0 && now >= s->quiet_at)
		replay_audit(s, now, out);
}

static cgn_nsec wake_at(const struct kvsource *s)
{
	const cgn_nsec due[] = {s->replaying ? s->replay_due : 0, s->stale_at,
		s->connected ? s->cooldown_until : 0, s->connected ? s->quiet_at : 0};
	cgn_nsec first = 0;
	for (size_t i = 0; i < CGN_COUNT(due); i++)
		if (due[i] != 0 && (first == 0 || due[i] < first))
			first = due[i];
	return first;
}

void kvsource_step(struct kvsource *s, const struct kvsource_input *in, cgn_nsec now,
	struct kvsource_orders *out)
{
	CGN_LIVE(s, KVSOURCE_TAG);
	*out = (struct kvsource_orders){0};
	switch (in->type) {
	case KVSOURCE_IN_CONNECTED:
		on_connected(s, now, out);
		break;
	case KVSOURCE_IN_DISCONNECTED:
		on_disconnected(s, now, out);
		break;
	case KVSOURCE_IN_LIVE:
		on_live(s, in->seq, in->payload, now, out);
		break;
	case KVSOURCE_IN_REPLAYED:
		on_replayed(s, in->seq, in->payload, now, out);
		break;
	case KVSOURCE_IN_REPLAY_END:
		on_replay_end(s, now, out);
		break;
	case KVSOURCE_IN_REPLAY_FAILED:
		on_replay_failed(s, in->why, now, out);
		break;
	case KVSOURCE_IN_TICK:
		on_tick(s, now, out);
		break;
	}
	state_settle(s);
	out->wake_at = wake_at(s);
}

/* ---- life ---- */

CGN_RC kvsource_new(const struct kvsource_cfg *cfg, struct holdings *h, struct kvsource **out,
	struct cgn_err *err)
{
	if (cfg->block_tokens == 0 || cfg->block_tokens > MAX_BLOCK_TOKENS || strlen(cfg->model) > 256)
		return CGN_FAIL(err, INVALID, "a source of KV events: block_tokens %u, model \"%.100s\"",
			cfg->block_tokens, cfg->model);
	struct kvsource *s = CGN_NEW(struct kvsource);
	s->digests = CGN_NEW_ARRAY(struct digest, LEDGER_MAX_SPLIT);
	s->tag = KVSOURCE_TAG;
	s->cfg = *cfg;
	s->cfg.max_blocks = cfg->max_blocks != 0 ? cfg->max_blocks : KVSOURCE_MAX_BLOCKS;
	(void)cgn_str_copyz(s->model, sizeof s->model, cgn_str_of(cfg->model));
	s->cfg.model = s->model;
	s->stats.dp_rank = -1;
	ledger_init(&s->ledger, h, s->cfg.max_blocks);
	state_set(s, KVSOURCE_WAITING, "not connected");
	*out = s;
	return CGN_OK;
}

void kvsource_free(struct kvsource **take)
{
	struct kvsource *s = CGN_TAKE_LIVE(take, KVSOURCE_TAG);
	if (s == NULL)
		return;
	ledger_clear(&s->ledger);
	held_clear(&s->held);
	cgn_buf_fini(&s->scratch);
	free(s->digests);
	s->tag = 0;
	free(s);
}

enum kvsource_state kvsource_state(const struct kvsource *s)
{
	CGN_LIVE(s, KVSOURCE_TAG);
	return s->state;
}

const char *kvsource_why(const struct kvsource *s)
{
	CGN_LIVE(s, KVSOURCE_TAG);
	return s->why;
}

struct kvsource_stats kvsource_stats(const struct kvsource *s)
{
	CGN_LIVE(s, KVSOURCE_TAG);
	struct kvsource_stats st = s->stats;
	st.next_seq = s->next;
	st.blocks = s->ledger.n_blocks;
	st.held = s->held.n;
	st.keeps = s->started;
	return st;
}
