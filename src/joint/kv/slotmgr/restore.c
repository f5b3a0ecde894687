/* SPDX-License-Identifier: Apache-2.0 */
/* restore: a state, from the store into a file and from the file into a slot. The pieces' checksums must be those
 * of the slot entry. The file is removed once the engine has read it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log/log.h"
#include "joint/kv/slotmgr/states_priv.h"

#define RESTORE_TAG    0xa9e17008U
#define ENGINE_TIMEOUT (60 * CGN_SEC)
#define WRITE_PIECES   64

struct slot_restore {
	uint32_t tag;
	struct slotmgr *mgr;
	struct cgn_loop *loop;
	uint64_t epoch;
	uint32_t slot;
	enum slots_from from;
	struct slot_tenant tenant;
	struct cgn_link link;
	slot_restore_done *done; /* NULL: no callback */
	void *user;

	struct slot_entry entry;
	uint64_t *words; /* Checksums and chain of |entry| */
	struct slot_file file;
	uint32_t piece;
	struct kvclient_series *pieces;
	struct kvclient_lease *lease;
	struct webask *fetch;
	int failed; /* errno of the thread pool's work; 0: none */
	bool over, on_pool, asked;
	cgn_nsec began, fetched;
	struct cgn_grave grave;
};

/* ---- end ---- */

static void restore_release(struct cgn_grave *g)
{
	struct slot_restore *r = CGN_CONTAINER(g, struct slot_restore, grave);
	kvclient_lease_release(&r->lease);
	free(r->words);
	r->tag = 0;
	free(r);
}

static void restore_remove_work(void *arg)
{
	struct slot_restore *r = arg;
	char ckpt[sizeof r->file.path + 8];
	(void)snprintf(ckpt, sizeof ckpt, "%s.ckpt", r->file.path);
	(void)unlink(r->file.path);
	if (r->entry.file_bytes[1] > 0)
		(void)unlink(ckpt);
}

static void restore_removed(void *arg)
{
	struct slot_restore *r = arg;
	cgn_loop_bury(r->loop, &r->grave, restore_release);
}

static void restore_retire(struct slot_restore *r)
{
	kvclient_series_free(&r->pieces);
	webask_cancel(&r->fetch);
	slot_file_end(&r->file);
	cgn_list_drop(&r->link);
	r->over = true;
	if (!r->on_pool)
		cgn_loop_work(r->loop, restore_remove_work, restore_removed, r);
}

static bool restore_is_current(const struct slot_restore *r)
{
	return r->mgr->slots != NULL && r->epoch == r->mgr->epoch;
}

static void restore_finish(struct slot_restore *r, const char *outcome,
	const struct slot_restore_result *result)
{
	struct slotmgr *m = r->mgr;
	metric_add(METRIC_OF(m->telemetry, SLOT_RESTORES, m->name, outcome), 1);
	if (result->ok)
		m->stats.restores++;
	else
		m->stats.restore_failures++;
	if (restore_is_current(r) && result->ok)
		slots_restored(m->slots, r->slot, r->entry.chain, r->entry.n, r->entry.prompt,
			result->tokens);
	else if (restore_is_current(r) && r->asked) /* The engine empties a slot that it can't restore */
		slots_restored(m->slots, r->slot, NULL, 0, 0, 0);
	else if (restore_is_current(r))
		slots_moved(m->slots, r->slot);
	if (r->done != NULL)
		r->done(r->user, result);
	else if (restore_is_current(r))
		slotmgr_slot_idle(m, r->slot);
	restore_retire(r);
}

static void restore_fail(struct slot_restore *r, enum restore_outcome outcome, const char *why)
{
	const struct slot_restore_result result = {.ok = false, .outcome = outcome};
	slotmgr_trouble(r->mgr, "a state can't be restored", why);
	restore_finish(r, restore_outcome_text(outcome), &result);
}

/* ---- into the engine ---- */

static void on_engine_restored(void *user, const struct webask_answer *f)
{
	static const enum restore_outcome sources[] = {[SLOTS_FROM_RAM] = RESTORE_FROM_RAM,
		[SLOTS_FROM_SSD] = RESTORE_FROM_SSD,
		[SLOTS_FROM_PEER] = RESTORE_FROM_PEER};
	struct slot_restore *r = user;
	struct slotmgr *m = r->mgr;
	struct json_val doc = {.type = JSON_NULL};
	CGN_LIVE(r, RESTORE_TAG);
	r->fetch = NULL;
	bool fine = webask_is_ok(f) && cgn_ok(json_parse(f->body, &doc, NULL, NULL));
	uint64_t tokens = fine ? json_get_u64(doc, "n_restored", 0) : 0;
	if (tokens != r->entry.tokens) {
		if (f->err->code == CGN_FINE) /* The engine would refuse the state again */
			slotmgr_refuse(m, slot_entry_id(&r->entry), r->entry.sums[0]);
		slotmgr_engine_did(m, false);
		restore_fail(r, RESTORE_FAILED_ENGINE,
			f->err->code != CGN_FINE ? f->err->msg
				: !fine          ? "the engine refused the state"
					: "the engine restored another number of tokens than the state has");
		return;
	}
	slotmgr_engine_did(m, true);
	cgn_nsec now = cgn_clock_now();
	double mib = (double)slot_entry_bytes(&r->entry) / SLOTS_MIB;
	slots_pace_learn(&m->pace.load_ms, slotmgr_engine_ms(doc, "restore_ms", cgn_since(now, r->fetched)),
		mib, 0.25);
	metric_observe(m->stats.restore_seconds, cgn_since(now, r->began));
	cgn_log(INFO, "slot.restored", F_STR("engine", m->name), F_U64("slot", r->slot),
		F_STR("from", restore_outcome_text(sources[r->from])), F_U64("tokens", tokens),
		F_U64("bytes", slot_entry_bytes(&r->entry)), F_DUR("took", cgn_since(now, r->began)),
		F_DUR("engine_took", cgn_since(now, r->fetched)));
	const struct slot_restore_result result = {.ok = true,
		.outcome = sources[r->from],
		.tokens = (uint32_t)tokens,
		.ms = (double)cgn_since(now, r->began) / 1e6};
	restore_finish(r, restore_outcome_text(sources[r->from]), &result);
}

static void restore_ask_engine(struct slot_restore *r)
{
	struct slotmgr *m = r->mgr;
	struct cgn_err err = {0};
	r->fetched = cgn_clock_now();
	slots_pace_learn(&m->pace.fetch_ms[r->from], (double)(r->fetched - r->began) / 1e6,
		(double)slot_entry_bytes(&r->entry) / SLOTS_MIB, 0.25);
	r->asked = true;
	if (!cgn_ok(slotmgr_ask_engine(m, r->slot, "restore", r->file.name, ENGINE_TIMEOUT,
		    on_engine_restored, r, &r->fetch, &err)))
		restore_fail(r, RESTORE_FAILED_ENGINE, err.msg);
}

static void on_restore_adapters(void *user, const struct webask_answer *f)
{
	struct slot_restore *r = user;
	CGN_LIVE(r, RESTORE_TAG);
	r->fetch = NULL;
	enum fingerprint_match same = fingerprint_compare(r->mgr, f);
	if (same == FINGERPRINT_SAME)
		restore_ask_engine(r);
	else if (same == FINGERPRINT_CHANGED)
		slotmgr_engine_changed(r->mgr); /* Stops this restore */
	else
		restore_fail(r, RESTORE_FAILED_ENGINE, "/lora-adapters can't be read");
}

static void restore_check_adapters(struct slot_restore *r)
{
	struct cgn_err err = {0};
	if (!fingerprint_may_change(r->mgr))
		restore_ask_engine(r);
	else if (!cgn_ok(fingerprint_reread(r->mgr, on_restore_adapters, r, &r->fetch, &err)))
		restore_fail(r, RESTORE_FAILED_ENGINE, err.msg);
}

/* ---- into the file ---- */

static void restore_get_next(struct slot_restore *r);

static ssize_t write_pieces(int fd, const struct iovec *iov, size_t n, uint64_t skip, uint64_t at)
{
	struct iovec some[WRITE_PIECES];
	int used = 0;
	for (size_t i = 0; i < n && used < WRITE_PIECES; i++) {
		if (skip >= iov[i].iov_len) {
			skip -= iov[i].iov_len;
			continue;
		}
		some[used++] = (struct iovec){(char *)iov[i].iov_base + skip, iov[i].iov_len - skip};
		skip = 0;
	}
	return pwritev(fd, some, used, (off_t)at);
}

static void restore_write_work(void *arg)
{
	struct slot_restore *r = arg;
	struct slot_entry_piece p = slot_entry_piece(&r->entry, r->piece);
	char path[sizeof r->file.path + 8];
	size_t n = 0;
	const struct iovec *iov = kvclient_lease_iov(r->lease, &n);
	(void)snprintf(path, sizeof path, p.file == 0 ? "%s" : "%s.ckpt", r->file.path);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (p.offset == 0 ? O_EXCL : 0), 0640);
	r->failed = fd < 0 ? errno : 0;
	for (uint64_t done = 0; r->failed == 0 && done < p.bytes;) {
		ssize_t w = write_pieces(fd, iov, n, done, p.offset + done);
		if (w > 0)
			done += (uint64_t)w;
		else if (w == 0 || errno != EINTR)
			r->failed = w == 0 ? EIO : errno;
	}
	if (fd >= 0 && close(fd) != 0 && r->failed == 0)
		r->failed = errno;
}

static void restore_written(void *arg)
{
	struct slot_restore *r = arg;
	CGN_LIVE(r, RESTORE_TAG);
	bool stale = kvclient_lease_is_stale(r->lease);
	r->on_pool = false;
	kvclient_lease_release(&r->lease);
	if (r->over) {
		restore_retire(r);
		return;
	}
	if (r->failed != 0 || stale) {
		char why[700];
		(void)snprintf(why, sizeof why, "%.500s: %s", r->file.path,
			stale ? "the store reclaimed its memory in the meantime" : strerror(r->failed));
		restore_fail(r, RESTORE_FAILED_STORAGE, why);
		return;
	}
	r->piece++;
	restore_get_next(r);
}

static void on_piece_got(void *user, const struct kvclient_answer *a)
{
	struct slot_restore *r = user;
	CGN_LIVE(r, RESTORE_TAG);
	r->lease = a->lease;
	if (a->err->code != CGN_FINE) {
		restore_fail(r,
			a->err->code == CGN_NOT_FOUND ? RESTORE_FAILED_STATE_GONE : RESTORE_FAILED_STORAGE,
			a->err->msg);
		return;
	}
	const struct block_info *info = kvclient_lease_info(r->lease);
	if (info->size != slot_entry_piece(&r->entry, r->piece).bytes ||
		info->checksum != r->entry.sums[r->piece]) {
		restore_fail(r, RESTORE_FAILED_STATE_GONE,
			"another state was stored in its place in the meantime");
		return;
	}
	r->on_pool = true;
	cgn_loop_work(r->loop, restore_write_work, restore_written, r);
}

/* Estimated time to compute the prompt, in ms: a slower peer is not asked. */
static uint32_t peer_timeout_ms(const struct slotmgr *m, const struct slot_entry *c, enum slots_from from)
{
	double ms = m->pace.prefill_ms * c->prompt;
	if (from != SLOTS_FROM_PEER)
		return KVCLIENT_HERE_ONLY;
	return !(ms > 0) ? KVCLIENT_WHATEVER : ms < 1 ? 1 : ms < 1e6 ? (uint32_t)ms : (uint32_t)1e6;
}

static void restore_get_next(struct slot_restore *r)
{
	if (r->piece == slot_entry_pieces(&r->entry))
		restore_check_adapters(r);
	else
		kvclient_series_next(r->pieces);
}

static void restore_piece_key(void *user, size_t i, struct block_key *out)
{
	const struct slot_restore *r = user;
	*out = slotmgr_key(r->mgr->fingerprint.keys.entry, slot_entry_id(&r->entry), (uint32_t)i + 1);
}

/* ---- begin ---- */

struct slot_restore *slot_restore_start(struct slotmgr *m, uint32_t slot, const struct slot_entry *c,
	enum slots_from from, struct cgn_str tenant, slot_restore_done *done, void *user)
{
	size_t pieces = slot_entry_pieces(c);
	uint64_t *words = slotmgr_kvclient(m) != NULL ? malloc((c->n + pieces) * sizeof *words) : NULL;
	if (words == NULL)
		return NULL;
	struct slot_restore *r = CGN_NEW(struct slot_restore);
	memcpy(words, c->sums, pieces * sizeof *words);
	memcpy(words + pieces, c->chain, c->n * sizeof *words);
	*r = (struct slot_restore){.tag = RESTORE_TAG,
		.mgr = m,
		.loop = m->loop,
		.epoch = m->epoch,
		.slot = slot,
		.from = from,
		.tenant = slot_tenant_of(tenant),
		.done = done,
		.user = user,
		.entry = *c,
		.words = words,
		.began = cgn_clock_now()};
	r->entry.sums = words;
	r->entry.chain = words + pieces;
	slot_file_begin(m, "load", &r->file);
	const struct kvclient_series_cfg cfg = {.n = pieces,
		.key = restore_piece_key,
		.worth_ms = peer_timeout_ms(m, c, from),
		.tenant = slot_tenant_text(&r->tenant),
		.done = on_piece_got,
		.user = r};
	if (!cgn_ok(kvclient_series_new(slotmgr_kvclient(m), &cfg, &r->pieces, NULL))) {
		slot_file_end(&r->file);
		free(words);
		free(r);
		return NULL;
	}
	cgn_list_push(&m->restores, &r->link);
	return r;
}

void slot_restore_leave(struct slot_restore **take)
{
	struct slot_restore *r = CGN_TAKE_LIVE(take, RESTORE_TAG);
	if (r == NULL)
		return;
	r->done = NULL;
}

void slot_restore_stop(struct cgn_link *link)
{
	struct slot_restore *r = CGN_CONTAINER(link, struct slot_restore, link);
	CGN_LIVE(r, RESTORE_TAG);
	restore_retire(r);
}
